"""OpenVINO on CPUs that announce instructions they do not allow: a child process finds a setting that works.

On some virtual CPUs, OpenVINO's library of kernels (oneDNN) chooses instructions that the CPU announces, and
the process dies with an illegal instruction. The variable ONEDNN_MAX_CPU_ISA limits the choice. It is read
when OpenVINO first computes, so it is set before that.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Mapping

from latency_profiler._cpu import cpu_flags
from latency_profiler._errors import EngineError

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
SAFER_SETS = ("AVX512_CORE_VNNI", "AVX2")
"""Instruction sets to try, in this order, if the CPU fails with those that OpenVINO chooses itself."""
# Instructions that came after those of AVX512_CORE_VNNI. CPUs without them are not tested.
RECENT_PREFIXES = ("amx_", "avx512_fp16", "avx512_bf16", "avx10", "avx_vnni_int8", "avx_ne_convert")
PROBE_SECONDS = 120.0

_logger = logging.getLogger("latency_profiler")

# A product in the precision asked for and one in int8. Small matrices take another code path and would pass.
_PROGRAM = """
import sys
import numpy as np
import openvino as ov
from openvino import opset13 as ops

x = ops.parameter([256, 1024], np.float32)
weight = ops.constant(np.ones((1024, 1024), np.float32))
low, high = np.float32(-4), np.float32(4)
quantised = [ops.fake_quantize(value, low, high, low, high, 256) for value in (x, weight)]
model = ov.Model([ops.matmul(x, weight, False, True), ops.matmul(*quantised, False, True)], [x], "probe")
settings = {"INFERENCE_PRECISION_HINT": sys.argv[1], "INFERENCE_NUM_THREADS": 1}
results = ov.Core().compile_model(model, "CPU", settings)([np.ones((256, 1024), np.float32)])
assert all(np.allclose(results[index], 1024.0, rtol=0.05) for index in (0, 1))
"""


@functools.cache
def choose_instructions(precision: str) -> str | None:
    """Make OpenVINO safe to use in this process, and return the instruction set it is limited to, if any.

    The answer of the child process holds for the whole life of this one.

    Args:
        precision: OpenVINO's precision hint, such as "f32".

    Raises:
        EngineError: OpenVINO fails in every child process, or it works only with a setting that comes too
            late because this process has loaded OpenVINO already.
    """
    given = os.environ.get(ISA_VARIABLE)
    if not _is_recent(cpu_flags()) or _works(precision, {}):
        return given
    working = next((name for name in SAFER_SETS if _works(precision, {ISA_VARIABLE: name})), None)
    if working is None:
        raise EngineError(
            f"OpenVINO with precision {precision} does not work on this CPU: test processes fail",
            "use the engine onnxruntime or eager, or another precision",
        )
    if "openvino" in sys.modules:
        raise EngineError(
            f"OpenVINO is loaded, and would end this process: this CPU needs {ISA_VARIABLE}={working}",
            f"set {ISA_VARIABLE}={working} before starting Python",
        )
    os.environ[ISA_VARIABLE] = working
    _logger.warning(
        "This CPU announces instructions that it does not allow; OpenVINO is limited to %s (%s).",
        working,
        ISA_VARIABLE,
    )
    return working


def _is_recent(flags: frozenset[str]) -> bool:
    """Whether the CPU announces instructions that are known to fail on some; yes if it announces nothing."""
    return not flags or any(flag.startswith(RECENT_PREFIXES) for flag in flags)


def _works(precision: str, variables: Mapping[str, str]) -> bool:
    """Return whether OpenVINO computes in a child process with these environment variables."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROGRAM, precision],
            env={**os.environ, **variables, "CI": "true"},  # see quiet_libraries: no usage reports
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return child.returncode == 0

"""Check in a child process whether half precision works on this CPU."""

import subprocess
import sys

import torch

from latency_profiler._errors import OptionError

# Some virtual CPUs advertise instructions that they do not allow, and a large matrix product then kills the
# process. Small matrices take another code path and would pass.
_PROBE = "import torch; x = torch.ones(1024, 1024, dtype=torch.{}); torch.nn.functional.linear(x, x)"


def check_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    """Raise OptionError if a matrix product in float16 or bfloat16 would kill this process.

    Only a CPU is tested; other dtypes and devices pass without a test.
    """
    if device.type != "cpu" or dtype not in (torch.float16, torch.bfloat16):
        return
    name = str(dtype).removeprefix("torch.")
    result = subprocess.run([sys.executable, "-c", _PROBE.format(name)], capture_output=True, check=False)
    if result.returncode != 0:
        raise OptionError(
            f"{name} does not work on this CPU: a test process ended with code {result.returncode}",
            "use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before starting Python",
        )

"""The engine ONNX Runtime: loads ONNX files, and exports modules in order to time them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from latency_profiler._errors import EngineError, one_line, require, shortened
from latency_profiler._extras import require_extra, versions_of
from latency_profiler._loaded import Array, LoadedModel, TensorCall
from latency_profiler._onnx import export_onnx, quantize_onnx
from latency_profiler._threads import checked_threads, threads_or_torch

ERRORS_ONLY = 3  # of ONNX Runtime's levels of logging


class OnnxModel(LoadedModel):
    """ONNX file in ONNX Runtime, on the CPU; made by `load_onnx`."""

    def __init__(self, session: Any, threads: int) -> None:
        shapes = {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in session.get_inputs()
        }
        super().__init__("onnxruntime", shapes, [value.name for value in session.get_outputs()], threads)
        self._session = session

    def _infer(self, arrays: list[Array]) -> list[Array]:
        result: list[Array] = self._session.run(None, dict(zip(self.inputs, arrays, strict=True)))
        return result


def load_onnx(path: str | Path, threads: int | None = None) -> OnnxModel:
    """Load an ONNX file into ONNX Runtime: ``load_onnx("model.onnx", threads=1)(ids, mask)``.

    Operators run one after the other, each on all threads. Threads without work sleep rather than spin, so
    that the CPU time of the process is that of the work.

    Args:
        path: ONNX file, in float32 or quantised.
        threads: Number of threads that compute; None takes torch's current setting. One thread is the
            calling one.

    Raises:
        MissingExtra: onnxruntime is not installed.
        OptionError: The number of threads is out of range.
        EngineError: The file cannot be read or run.
    """
    require_extra("onnxruntime")
    import onnxruntime

    threads = threads_or_torch(threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a dozen, without a common base
        raise EngineError(
            f"ONNX Runtime cannot load {shortened(path)}: {one_line(error)}",
            "give an ONNX file that it can run",
        ) from error
    return OnnxModel(session, threads)


class OnnxRuntimeEngine:
    """ONNX Runtime on the CPU. Modules are exported to ONNX, and optionally quantised, in `prepare`.

    Args:
        quantize: None for float32; "int8" quantises the weights of matrix products as `quantize_onnx` does.
        threads: Number of threads that compute; None takes torch's setting at the time of `prepare`.
    """

    name = "onnxruntime"

    def __init__(self, quantize: str | None = None, threads: int | None = None) -> None:
        require(quantize in (None, "int8"), f"quantize is {quantize!r:.40}", "use 'int8' or None")
        require_extra("onnxruntime")
        self.quantize = quantize
        self.threads = None if threads is None else checked_threads(threads)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of torch, which exports, onnx and ONNX Runtime."""
        return versions_of("torch", "onnx", "onnxruntime")

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Export the module for inputs of these shapes, and return a callable from tensors to tensors.

        Raises:
            EngineError: The module cannot be exported, quantised or loaded.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = export_onnx(module, example_inputs, Path(folder) / "model.onnx")
            if self.quantize:
                path = quantize_onnx(path, Path(folder) / "model_int8.onnx")
            return TensorCall(load_onnx(path, self.threads))

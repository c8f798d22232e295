"""Measure the latency of PyTorch modules at every size, on the hardware and engine that will run them.

Each public name is imported when it is first used, so that a program that only reads tables does not wait for
torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latency_profiler._clock import Clock, CpuClock, DeviceClock, WallClock, WatchingClock
    from latency_profiler._compare import Comparison, Ratio, compare
    from latency_profiler._cpu import has_int8_instructions, int8_note
    from latency_profiler._curve import LatencyCurve
    from latency_profiler._engines import CompileEngine, EagerEngine, Engine, resolve_engine
    from latency_profiler._environment import Difference, Environment
    from latency_profiler._errors import (
        EngineError,
        EnvironmentMismatch,
        FactoryError,
        MissingExtra,
        NotFinite,
        OptionError,
        OutputError,
        OutputFileError,
        ProfilerError,
        SizeError,
        TableError,
        UnreadableTable,
    )
    from latency_profiler._half import check_half_precision
    from latency_profiler._loaded import LoadedModel
    from latency_profiler._measure import measure
    from latency_profiler._onnx import export_onnx, quantize_onnx, quantize_onnx_static
    from latency_profiler._onnxruntime import OnnxModel, OnnxRuntimeEngine, load_onnx
    from latency_profiler._openvino import (
        OpenVinoEngine,
        OpenVinoModel,
        convert_openvino,
        load_openvino,
        quantize_openvino,
    )
    from latency_profiler._profile import Family, profile, profile_families
    from latency_profiler._sizes import geometric_sizes, parse_sizes
    from latency_profiler._table import LatencyTable
    from latency_profiler._timing import Timing

__version__ = version("latency-profiler")

__all__ = [
    "Clock",
    "Comparison",
    "CompileEngine",
    "CpuClock",
    "DeviceClock",
    "Difference",
    "EagerEngine",
    "Engine",
    "EngineError",
    "Environment",
    "EnvironmentMismatch",
    "FactoryError",
    "Family",
    "LatencyCurve",
    "LatencyTable",
    "LoadedModel",
    "MissingExtra",
    "NotFinite",
    "OnnxModel",
    "OnnxRuntimeEngine",
    "OpenVinoEngine",
    "OpenVinoModel",
    "OptionError",
    "OutputError",
    "OutputFileError",
    "ProfilerError",
    "Ratio",
    "SizeError",
    "TableError",
    "Timing",
    "UnreadableTable",
    "WallClock",
    "WatchingClock",
    "check_half_precision",
    "compare",
    "convert_openvino",
    "export_onnx",
    "geometric_sizes",
    "has_int8_instructions",
    "int8_note",
    "load_onnx",
    "load_openvino",
    "measure",
    "parse_sizes",
    "profile",
    "profile_families",
    "quantize_onnx",
    "quantize_onnx_static",
    "quantize_openvino",
    "resolve_engine",
]

_NAMES = {
    "_clock": ("Clock", "CpuClock", "DeviceClock", "WallClock", "WatchingClock"),
    "_compare": ("Comparison", "Ratio", "compare"),
    "_cpu": ("has_int8_instructions", "int8_note"),
    "_curve": ("LatencyCurve",),
    "_engines": ("CompileEngine", "EagerEngine", "Engine", "resolve_engine"),
    "_environment": ("Difference", "Environment"),
    "_errors": (
        "EngineError",
        "EnvironmentMismatch",
        "FactoryError",
        "MissingExtra",
        "NotFinite",
        "OptionError",
        "OutputError",
        "OutputFileError",
        "ProfilerError",
        "SizeError",
        "TableError",
        "UnreadableTable",
    ),
    "_half": ("check_half_precision",),
    "_loaded": ("LoadedModel",),
    "_measure": ("measure",),
    "_onnx": ("export_onnx", "quantize_onnx", "quantize_onnx_static"),
    "_onnxruntime": ("OnnxModel", "OnnxRuntimeEngine", "load_onnx"),
    "_openvino": (
        "OpenVinoEngine",
        "OpenVinoModel",
        "convert_openvino",
        "load_openvino",
        "quantize_openvino",
    ),
    "_profile": ("Family", "profile", "profile_families"),
    "_sizes": ("geometric_sizes", "parse_sizes"),
    "_table": ("LatencyTable",),
    "_timing": ("Timing",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take this function as a sign that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

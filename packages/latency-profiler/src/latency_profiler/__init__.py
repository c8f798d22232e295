"""Measure the latency of PyTorch modules at every size, on the hardware and engine that will run them."""

from importlib.metadata import version

from latency_profiler._clock import Clock, CpuClock, DeviceClock, WallClock
from latency_profiler._compare import Comparison, Ratio, compare
from latency_profiler._curve import LatencyCurve
from latency_profiler._engines import CompileEngine, EagerEngine, Engine
from latency_profiler._environment import Difference, Environment
from latency_profiler._errors import (
    EngineError,
    EnvironmentMismatch,
    FactoryError,
    OptionError,
    OutputError,
    ProfilerError,
    SizeError,
    TableError,
)
from latency_profiler._half import check_half_precision
from latency_profiler._profile import Family, profile, profile_families
from latency_profiler._sizes import geometric_sizes, parse_sizes
from latency_profiler._table import LatencyTable
from latency_profiler._timing import Timing, measure

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
    "OptionError",
    "OutputError",
    "ProfilerError",
    "Ratio",
    "SizeError",
    "TableError",
    "Timing",
    "WallClock",
    "check_half_precision",
    "compare",
    "geometric_sizes",
    "measure",
    "parse_sizes",
    "profile",
    "profile_families",
]

"""Time a single callable, with a confidence interval."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from latency_profiler._callables import device_of, in_inference_mode
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._errors import TableError
from latency_profiler._json import NUMBER, checked_fields
from latency_profiler._memory import keep_freed_memory
from latency_profiler._rounds import Progress, Rounds, Stopping, StopReason, Variant, run_rounds
from latency_profiler._statistics import (
    Statistic,
    bootstrap,
    estimates,
    interval,
    percentile_20,
    relative_error,
)
from latency_profiler._threads import pinned_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from latency_profiler._statistics import FloatArray, Samples


@dataclass(frozen=True)
class Timing:
    """Summary of the samples of one callable. All times are seconds per call.

    Attributes:
        seconds: Estimated time: the 20th percentile of the samples or, in a profile, the mean of their
            fastest tenth.
        low: Lower end of the confidence interval of `seconds`.
        high: Upper end of the confidence interval of `seconds`.
        minimum: Fastest sample.
        median: Median of the samples.
        maximum: Slowest sample.
        spread: Interquartile range relative to the median, a measure of how noisy the machine was.
        runs: Number of samples.
        calls: Number of calls per sample; above 1 if a single call is too short to be timed.
        stopped: "rel_error" if the requested precision was reached, "max_seconds" if the time limit was
            reached first.
    """

    seconds: float
    low: float
    high: float
    minimum: float
    median: float
    maximum: float
    spread: float
    runs: int
    calls: int
    stopped: StopReason

    @property
    def rel_error(self) -> float:
        """Distance from `seconds` to the farther end of its confidence interval, relative to `seconds`."""
        return relative_error(np.array([self.seconds]), np.array([self.low]), np.array([self.high]))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Timing:
        """Rebuild a timing from the result of `to_dict`.

        Raises:
            TableError: A field is missing, unknown or of the wrong type.
        """
        timing = cls(**checked_fields(values, _FIELD_TYPES))
        if timing.stopped not in get_args(StopReason):
            raise TableError(
                f"stopped has the invalid value {timing.stopped!r:.40}",
                f"allowed are {' and '.join(get_args(StopReason))}",
            )
        return timing

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.seconds)} ± {self.rel_error:.1%} ({self.runs} runs; "
            f"median {format_seconds(self.median)}, spread {self.spread:.1%})"
        )


_FIELD_TYPES = {field.name: NUMBER for field in fields(Timing)} | {
    "runs": (int,),
    "calls": (int,),
    "stopped": (str,),
}


def format_seconds(seconds: float) -> str:
    """Format a time with four significant digits and a suitable unit, such as 12.31 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def summarise(rounds: Rounds, confidence: float, statistic: Statistic = percentile_20) -> tuple[Timing, ...]:
    """Summarise the samples of each variant, using `statistic` as the estimate of its time."""
    seconds = estimates(rounds.samples, statistic)
    low, high = interval(bootstrap(rounds.samples, statistic), confidence)
    return tuple(
        _summary(samples, seconds[index], low[index], high[index], rounds.calls[index], rounds.stopped)
        for index, samples in enumerate(rounds.samples)
    )


def _summary(
    samples: FloatArray, seconds: float, low: float, high: float, calls: int, stopped: StopReason
) -> Timing:
    lower, median, upper = (float(value) for value in np.percentile(samples, [25, 50, 75]))
    return Timing(
        seconds=float(seconds),
        low=float(low),
        high=float(high),
        minimum=float(samples.min()),
        median=median,
        maximum=float(samples.max()),
        spread=(upper - lower) / median if median > 0 else 0.0,
        runs=samples.size,
        calls=calls,
        stopped=stopped,
    )


def worst_time_error(samples: Samples, confidence: float, statistic: Statistic = percentile_20) -> float:
    """Return the largest relative error among the estimated times of the variants."""
    low, high = interval(bootstrap(samples, statistic), confidence)
    return relative_error(estimates(samples, statistic), low, high)


def measure(
    function: Callable[..., object],
    *args: object,
    rel_error: float = 0.01,
    confidence: float = 0.99,
    min_rounds: int = 60,
    min_seconds: float = 0.2,
    max_seconds: float = 10.0,
    clock: ClockName | Clock = "wall",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Timing:
    """Time a callable or module: ``measure(model, x)``.

    Sampling stops when the 20th percentile is known to `rel_error`, after at least `min_rounds` samples and
    `min_seconds`, or when `max_seconds` have passed. `Timing.stopped` says which of the two happened. To
    compare callables use `compare`: successive calls of `measure` meet different load on the machine.

    Args:
        function: Callable to time. A module is called under `torch.inference_mode()`; its train or eval
            mode is not changed.
        *args: Arguments of `function`.
        rel_error: Requested half-width of the confidence interval, relative to the time.
        confidence: Confidence level of the interval.
        min_rounds: Minimum number of samples, unless `max_seconds` is reached first.
        min_seconds: Minimum time of the measurement.
        max_seconds: Time limit of the measurement, excluding warm-up.
        clock: "wall" (elapsed time; device events on accelerators), "cpu" (CPU time of this process, for
            shared machines; one thread only), or a `Clock` object.
        threads: Number of torch threads during the measurement; None keeps the current setting.
        progress: Called after each sample with the number of samples and the fraction of `max_seconds` used;
            the fraction is 1.0 at the end.

    Raises:
        OptionError: An argument is out of range.
    """
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds, min_seconds)
    variant = Variant(in_inference_mode(function), args)
    with pinned_threads(threads), keep_freed_memory():
        rounds = run_rounds(
            [variant],
            resolve_clock(clock, device_of(function, args)),
            stopping,
            lambda samples: worst_time_error(samples, confidence),
            progress=progress,
        )
    return summarise(rounds, confidence)[0]

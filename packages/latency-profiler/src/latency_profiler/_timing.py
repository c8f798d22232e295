"""Timing: what repeated runs of one callable took, and how sure that is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from latency_profiler._callables import device_of, in_inference_mode
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._errors import TableError
from latency_profiler._json import NUMBER, checked_fields
from latency_profiler._memory import kept_memory
from latency_profiler._rounds import Progress, Rounds, Stopping, StopReason, Variant, run_rounds
from latency_profiler._statistics import (
    Statistic,
    figures,
    interval,
    percentile_20,
    relative_error,
    resampled,
)
from latency_profiler._threads import pinned_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from latency_profiler._statistics import FloatArray, Samples


@dataclass(frozen=True)
class Timing:
    """A summary of the samples of one callable; all times are seconds per call.

    Attributes:
        seconds: The figure to use: the 20th percentile of the samples; in a profile, the mean of their
            fastest tenth.
        low: Lower end of the confidence interval of `seconds`.
        high: Upper end.
        minimum: The fastest sample.
        median: The median sample.
        maximum: The slowest sample.
        spread: Interquartile range relative to the median: how noisy the machine was.
        runs: How many samples there are.
        calls: Calls per sample; more than 1 when one call is too short to be timed.
        stopped: "rel_error" when the wanted precision was met, "max_seconds" when the time was up.
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
        """The larger half of the confidence interval, relative to `seconds`."""
        return relative_error(np.array([self.seconds]), np.array([self.low]), np.array([self.high]))

    def to_dict(self) -> dict[str, Any]:
        """The fields, as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Timing:
        """The inverse of `to_dict`; TableError if a field is missing or of another kind."""
        timing = cls(**checked_fields(values, _KINDS))
        if timing.stopped not in get_args(StopReason):
            raise TableError(
                f"stopped is {timing.stopped!r:.40}", f"it is one of {', '.join(get_args(StopReason))}"
            )
        return timing

    def __str__(self) -> str:
        return (
            f"{format_seconds(self.seconds)} ± {self.rel_error:.1%} ({self.runs} runs; "
            f"median {format_seconds(self.median)}, spread {self.spread:.1%})"
        )


_KINDS = {field.name: NUMBER for field in fields(Timing)} | {
    "runs": (int,),
    "calls": (int,),
    "stopped": (str,),
}


def format_seconds(seconds: float) -> str:
    """Four significant digits in a unit that suits: 12.31 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def summarise(rounds: Rounds, confidence: float, statistic: Statistic = percentile_20) -> tuple[Timing, ...]:
    """One Timing per variant."""
    seconds = figures(rounds.samples, statistic)
    low, high = interval(resampled(rounds.samples, statistic), confidence)
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


def seconds_error(samples: Samples, confidence: float, statistic: Statistic = percentile_20) -> float:
    """The worst relative error of the variants' figures."""
    low, high = interval(resampled(samples, statistic), confidence)
    return relative_error(figures(samples, statistic), low, high)


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

    Runs until the 20th percentile is known to `rel_error` (with at least `min_rounds` runs and
    `min_seconds`), or until `max_seconds` have passed; `Timing.stopped` says which. To set one callable
    against another use `compare`: two calls of `measure`, one after the other, meet different load.

    Args:
        function: Any callable. A module is called under `torch.inference_mode()`, in train or eval mode as
            it stands.
        *args: Its arguments.
        rel_error: Wanted half-width of the confidence interval, relative.
        confidence: Of the interval.
        min_rounds: Fewest runs, unless the time is up.
        min_seconds: Shortest time to measure.
        max_seconds: Longest time to measure, warm-up excluded.
        clock: "wall" (on accelerators: device events), "cpu" (CPU time of this process, for shared machines;
            one thread only), or any `Clock`.
        threads: Threads of torch for the duration; None leaves them as they are.
        progress: Called with the number of runs and the fraction of `max_seconds` used up.
    """
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds, min_seconds)
    variant = Variant(in_inference_mode(function), args)
    with pinned_threads(threads), kept_memory():
        rounds = run_rounds(
            [variant],
            resolve_clock(clock, device_of(function, args)),
            stopping,
            lambda samples: seconds_error(samples, confidence),
            progress=progress,
        )
    return summarise(rounds, confidence)[0]

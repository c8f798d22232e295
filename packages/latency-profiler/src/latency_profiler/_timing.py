"""Time of a single callable, with a confidence interval. Reading and printing one needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from latency_profiler._errors import TableError
from latency_profiler._json import NUMBER, check_least, checked_fields
from latency_profiler._statistics import (
    Statistic,
    bootstrap,
    estimates,
    interval,
    percentile_20,
    relative_error,
)

if TYPE_CHECKING:
    from latency_profiler._rounds import Rounds
    from latency_profiler._statistics import FloatArray, Samples

StopReason = Literal["rel_error", "max_seconds"]
# Value of `Timing.slow_runs` from which the machine counts as busy. On two cores beside three busy processes,
# a BERT-base layer had 1.1 to 2.6 by the wall clock, and its attention 1.2 to 1.8 by the CPU clock.
BUSY = 2.0


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
        spread: Interquartile range (the width of the middle half of the samples) divided by the median.
            See also `slow_runs`.
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

    @property
    def slow_runs(self) -> float:
        """How slow the slow samples are: a quarter of all samples took at least this many times `seconds`.

        The third quartile is not stored. It is at least the median, and at least the fastest sample plus the
        interquartile range. This property is the larger of these two bounds, divided by `seconds`.
        """
        third_quartile = max(self.median, self.minimum + self.spread * self.median)
        return third_quartile / self.seconds if self.seconds > 0 else 1.0

    @property
    def busy(self) -> bool:
        """Whether other work probably slowed the machine down: `slow_runs` is 2 or more."""
        return self.slow_runs >= BUSY

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Timing:
        """Rebuild a timing from the result of `to_dict`.

        Raises:
            TableError: A field is missing, unknown, of the wrong type or out of range.
        """
        timing = cls(**checked_fields(values, _FIELD_TYPES))
        check_least(values, _LEAST)
        if timing.stopped not in get_args(StopReason):
            raise TableError(
                f"stopped has the invalid value {timing.stopped!r:.40}",
                f"allowed are {' and '.join(get_args(StopReason))}",
            )
        return timing

    def __str__(self) -> str:
        slow = (
            f"; a quarter of them took at least {self.slow_runs:.1f}x the reported time: the machine was busy"
            if self.busy
            else ""
        )
        return (
            f"{format_seconds(self.seconds)} ± {self.rel_error:.1%} "
            f"({self.runs} runs, median {format_seconds(self.median)}{slow})"
        )


_FIELD_TYPES = {field.name: NUMBER for field in fields(Timing)} | {
    "runs": (int,),
    "calls": (int,),
    "stopped": (str,),
}
_LEAST = {name: 0 for name, types in _FIELD_TYPES.items() if types == NUMBER} | {"runs": 1, "calls": 1}


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

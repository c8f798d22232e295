"""Compare variants by timing them in interleaved rounds; ratios come with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from latency_profiler._callables import device_of, in_inference_mode
from latency_profiler._clock import Clock, ClockName, WatchingClock, resolve_clock
from latency_profiler._competition import NEGLIGIBLE, log_doubt, log_slowdown
from latency_profiler._errors import OptionError, require
from latency_profiler._memory import keep_freed_memory
from latency_profiler._rounds import (
    Inputs,
    Progress,
    Rounds,
    Stopping,
    Variant,
    equal_repeats,
    once,
    run_rounds,
)
from latency_profiler._statistics import bootstrap, estimates, interval, percentile_20, relative_error
from latency_profiler._threads import check_threads, pinned_threads
from latency_profiler._timing import StopReason, Timing, format_seconds, summarise

if TYPE_CHECKING:
    from latency_profiler._statistics import FloatArray, Samples


@dataclass(frozen=True)
class Ratio:
    """Ratio of two times with its confidence interval.

    ``1.0 in ratio`` tests whether the interval contains 1, that is, whether the two times may be equal.

    Attributes:
        value: Estimate of the ratio; in CPU time, corrected for what other processes typically change.
        low: Lower end of the confidence interval.
        high: Upper end of the confidence interval.
        doubt: How far other processes may have changed the ratio, relative to it. The interval includes it.
    """

    value: float
    low: float
    high: float
    doubt: float = 0.0

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Comparison(Mapping[str, Timing]):
    """Timings of the variants by name, in the order given, and the ratios between them.

    Attributes:
        samples: Seconds per call, float64 of shape (rounds, variants); by the wall clock, each is the mean of
            the samples of a round.
        confidence: Confidence level of all intervals.
        stopped: "rel_error" if all ratios reached the requested precision, "max_seconds" if the time limit
            was reached first.
        competition: Share of this process's cores that other processes used during the measurement; 0 if the
            clock does not know it. Ratios of CPU times are corrected for what it typically changes, and
            intervals of all ratios include what it may have changed.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        rounds: Rounds,
        confidence: float,
        competition: float = 0.0,
        corrected: bool = False,
    ) -> None:
        self.samples: FloatArray = np.hstack(rounds.samples)
        self.confidence = confidence
        self.stopped: StopReason = rounds.stopped
        self.competition = competition
        self._corrected = corrected
        self._timings = dict(zip(names, summarise(rounds, confidence), strict=True))

    def ratio(self, name: str, to: str | None = None) -> Ratio:
        """Return the time of `name` relative to `to`, by default the first variant; above 1 is slower."""
        return self._divide(name, self._first if to is None else to)

    def speedup(self, name: str, over: str | None = None) -> Ratio:
        """Return the speedup of `name` over `over`, by default the first variant; above 1 is faster."""
        return self._divide(self._first if over is None else over, name)

    @property
    def _first(self) -> str:
        return next(iter(self._timings))

    def _divide(self, numerator: str, denominator: str) -> Ratio:
        pair = [self.samples[:, [self._column(name)]] for name in (numerator, denominator)]
        numerator_seconds, denominator_seconds = estimates(pair, percentile_20)
        resamples = bootstrap(pair, percentile_20)  # (resamples, 2)
        low, high = interval(resamples[:, 0] / resamples[:, 1], self.confidence)
        value = float(numerator_seconds / denominator_seconds)
        slowdown = log_slowdown(self.competition, math.log(value)) if self._corrected else 0.0
        correction = math.exp(slowdown)
        doubt = math.exp(log_doubt(self.competition, math.log(value), corrected=self._corrected))
        return Ratio(
            value * correction, float(low) * correction / doubt, float(high) * correction * doubt, doubt - 1
        )

    def _column(self, name: str) -> int:
        if name not in self._timings:
            raise OptionError(f"unknown variant {name!r}", f"use one of {', '.join(map(repr, self))}")
        return list(self._timings).index(name)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def __repr__(self) -> str:
        lines = [f"{len(self.samples)} rounds, stopped by {self.stopped}"]
        if self.competition >= NEGLIGIBLE:
            lines[0] += f", while other processes used {self.competition:.0%} of the cores"
        for name, timing in self.items():
            speed = "" if name == self._first else f", {self.speedup(name)} x the speed of {self._first}"
            lines.append(f"  {name}: {format_seconds(timing.seconds)}{speed}")
        return "\n".join(lines)


def worst_ratio_error(samples: Samples, confidence: float) -> float:
    """Return the largest relative error among the ratios of the other variants to the first."""
    if _has_zero_times(samples):
        return np.inf
    seconds, resamples = estimates(samples, percentile_20), bootstrap(samples, percentile_20)
    low, high = interval(resamples[:, 1:] / resamples[:, :1], confidence)
    return relative_error(seconds[1:] / seconds[0], low, high)


def means_of_rounds(samples: Samples) -> list[FloatArray]:
    """Return the mean of the samples of each round: (rounds, repeats) -> (rounds, 1) for each variant."""
    return [values.mean(axis=1, keepdims=True) for values in samples]


def _has_zero_times(samples: Samples) -> bool:
    return any(np.any(values <= 0.0) for values in samples)


def compare(
    variants: Mapping[str, Callable[..., object]],
    inputs: Inputs = (),
    *,
    rel_error: float = 0.01,
    confidence: float = 0.99,
    min_rounds: int = 60,
    max_seconds: float = 60.0,
    clock: ClockName | Clock = "wall",
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Time variants against each other: ``compare({"dense": f, "pruned": g}, x).speedup("pruned")``.

    Every round times every variant, in random order, so that other load on the machine affects all of them
    alike. By the wall clock, a round times quick variants several times, until they have met as much of that
    load as the slowest. Ratios are between 20th percentiles; their intervals come from a bootstrap over the
    rounds, and are wider if other processes kept the cores busy (see `Ratio.doubt`). These slow small models
    more than large ones, for which ratios of CPU times are corrected.

    Args:
        variants: Two or more callables or modules by name. Modules are called under
            `torch.inference_mode()`; their train or eval mode is not changed.
        inputs: Tensor, tuple of arguments, or function without parameters that returns such a tuple. The
            function is called before every call of a variant and is not timed.
        rel_error: Requested half-width of the confidence interval of each variant's ratio to the first
            variant, relative to the ratio.
        confidence: Confidence level of the intervals.
        min_rounds: Minimum number of rounds, unless `max_seconds` is reached first.
        max_seconds: Time limit of the measurement, excluding warm-up.
        clock: "wall" (elapsed time; device events on accelerators), "cpu" (CPU time of this process, for
            shared machines; one thread only), or a `Clock` object.
        threads: Number of torch threads during the measurement; None keeps the current setting. Exported
            models must have been prepared or loaded with the same number.
        seed: Seed of the random order within each round.
        progress: Called after each round with the number of rounds and the fraction of `max_seconds` used;
            the fraction is 1.0 at the end.

    Returns:
        The timings and, through `Comparison.ratio` and `Comparison.speedup`, their ratios.

    Raises:
        OptionError: An argument is out of range, there are fewer than two variants, or calls are too short
            for the clock, or an exported model has another number of threads than torch.
    """
    require(
        len(variants) >= 2,
        f"compare needs at least two variants, got {len(variants)}",
        "add a variant, or use measure to time a single callable",
    )
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds)
    wrapped = [Variant(in_inference_mode(function), inputs) for function in variants.values()]
    with pinned_threads(threads), keep_freed_memory():
        check_threads(variants)
        first = next(iter(variants.values()))
        used_clock = resolve_clock(clock, device_of(first, wrapped[0].arguments()))
        competition = used_clock.watch() if isinstance(used_clock, WatchingClock) else _unknown
        rounds = run_rounds(
            wrapped,
            used_clock,
            stopping,
            lambda samples: worst_ratio_error(means_of_rounds(samples), confidence),
            # On this clock, time spent waiting for a core counts. On the CPU clock it does not, and single
            # samples moved least with the load.
            repeats=equal_repeats if used_clock.name == "wall" else once,
            seed=seed,
            progress=progress,
        )
        share = competition()
    rounds = replace(rounds, samples=means_of_rounds(rounds.samples))
    if _has_zero_times(rounds.samples):
        raise OptionError("some calls took zero time on this clock", "make each call do more work")
    return Comparison(tuple(variants), rounds, confidence, share, corrected=used_clock.name == "cpu")


def _unknown() -> float:
    """Return the competition that is assumed if the clock does not know it."""
    return 0.0

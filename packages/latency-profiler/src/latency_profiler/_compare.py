"""Comparison: variants timed in interleaved rounds, and their ratios with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from latency_profiler._callables import device_of, in_inference_mode
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._errors import OptionError, require
from latency_profiler._memory import kept_memory
from latency_profiler._rounds import Inputs, Progress, Rounds, Stopping, StopReason, Variant, run_rounds
from latency_profiler._statistics import figures, interval, percentile_20, relative_error, resampled
from latency_profiler._threads import pinned_threads
from latency_profiler._timing import Timing, format_seconds, summarise

if TYPE_CHECKING:
    from latency_profiler._statistics import FloatArray, Samples


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times with its confidence interval; ``1.0 in ratio`` asks whether they may be equal."""

    value: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Comparison(Mapping[str, Timing]):
    """The timings by name, in the order given, and the ratios between them.

    Attributes:
        samples: Seconds per call, float64 (rounds, variants): a row holds what was measured side by side.
        confidence: Of all intervals.
        stopped: "rel_error" when all ratios met the wanted precision, "max_seconds" when the time was up.
    """

    def __init__(self, names: tuple[str, ...], rounds: Rounds, confidence: float) -> None:
        self.samples: FloatArray = np.hstack(rounds.samples)
        self.confidence = confidence
        self.stopped: StopReason = rounds.stopped
        self._timings = dict(zip(names, summarise(rounds, confidence), strict=True))

    def ratio(self, name: str, to: str | None = None) -> Ratio:
        """Time of `name` divided by the time of `to` (the first variant unless told): above 1 is slower."""
        return self._divide(name, self._first if to is None else to)

    def speedup(self, name: str, over: str | None = None) -> Ratio:
        """Time of `over` (the first variant unless told) divided by the time of `name`: above 1 is faster."""
        return self._divide(self._first if over is None else over, name)

    @property
    def _first(self) -> str:
        return next(iter(self._timings))

    def _divide(self, above: str, below: str) -> Ratio:
        pair = [self.samples[:, [self._column(name)]] for name in (above, below)]
        above_seconds, below_seconds = figures(pair, percentile_20)
        draws = resampled(pair, percentile_20)
        low, high = interval(draws[:, 0] / draws[:, 1], self.confidence)
        return Ratio(float(above_seconds / below_seconds), float(low), float(high))

    def _column(self, name: str) -> int:
        if name not in self._timings:
            raise OptionError(f"there is no variant {name!r}", f"use one of {', '.join(map(repr, self))}")
        return list(self._timings).index(name)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def __repr__(self) -> str:
        lines = [f"{len(self.samples)} rounds, stopped by {self.stopped}"]
        for name, timing in self.items():
            times = "" if name == self._first else f", {self.speedup(name)} x the speed of {self._first}"
            lines.append(f"  {name}: {format_seconds(timing.seconds)}{times}")
        return "\n".join(lines)


def ratios_error(samples: Samples, confidence: float) -> float:
    """The worst relative error of the ratios of all variants to the first."""
    if _some_without_time(samples):
        return np.inf
    center, draws = figures(samples, percentile_20), resampled(samples, percentile_20)
    low, high = interval(draws[:, 1:] / draws[:, :1], confidence)
    return relative_error(center[1:] / center[0], low, high)


def _some_without_time(samples: Samples) -> bool:
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

    Every round runs every variant, in random order, so that load on the machine falls on all alike. The
    ratio of 20th percentiles is reported, with an interval by bootstrap over rounds.

    Args:
        variants: Callables or modules by name (two or more); modules are called under
            `torch.inference_mode()`, in train or eval mode as they stand.
        inputs: A tensor, a tuple of arguments, or a function of nothing that returns such a tuple; the
            function is called before every call, outside the timing.
        rel_error: Wanted half-width of the interval of every ratio to the first variant, relative.
        confidence: Of the intervals.
        min_rounds: Fewest rounds, unless the time is up.
        max_seconds: Longest time to measure, warm-up excluded.
        clock: "wall" (on accelerators: device events), "cpu" (CPU time of this process, for shared machines;
            one thread only), or any `Clock`.
        threads: Threads of torch for the duration; None leaves them as they are.
        seed: Of the orders within rounds.
        progress: Called with the number of rounds and the fraction of `max_seconds` used up.
    """
    require(len(variants) >= 2, f"there is nothing to compare: {len(variants)} variants", "give two or more")
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds)
    wrapped = [Variant(in_inference_mode(function), inputs) for function in variants.values()]
    with pinned_threads(threads), kept_memory():
        first = next(iter(variants.values()))
        rounds = run_rounds(
            wrapped,
            resolve_clock(clock, device_of(first, wrapped[0].arguments())),
            stopping,
            lambda samples: ratios_error(samples, confidence),
            seed=seed,
            progress=progress,
        )
    if _some_without_time(rounds.samples):
        raise OptionError("some calls took no time by this clock", "make the variants do more work per call")
    return Comparison(tuple(variants), rounds, confidence)

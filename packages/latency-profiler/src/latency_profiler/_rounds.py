"""Sampling loop: every round times all variants, in random order, until the results are precise enough."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latency_profiler._clock import Clock
from latency_profiler._errors import OptionError, require
from latency_profiler._statistics import Samples
from latency_profiler._timing import StopReason

Inputs = torch.Tensor | tuple[Any, ...] | Callable[[], tuple[Any, ...]]
Progress = Callable[[int, float], None]

# Fewer rounds say nothing about the spread, so the time limit is ignored until there are this many.
FEWEST_ROUNDS = 5
# Minimum length of a sample in seconds. Shorter samples are dominated by the clock and by single interrupts,
# so quick callables are called several times per sample.
SHORTEST_SAMPLE = 1e-3
MOST_CALLS = 1 << 16  # per sample
MOST_REPEATS = 8  # samples of one variant per round
WARM_UP_CALLS = 3
WARM_UP_SECONDS = 0.5  # after which a single call is enough; slow callables gain nothing by more
# Factor by which the number of rounds grows between checks of the precision. Rare checks limit the cost of
# the bootstrap, and the chance of stopping at a moment when the interval happens to be too narrow.
CHECK_GROWTH = 1.2


@dataclass(frozen=True)
class Stopping:
    """Rule for when to stop sampling.

    Sampling stops when `rel_error` is reached, after at least `min_rounds` and `min_seconds`, or when
    `max_seconds` have passed.

    Attributes:
        rel_error: Requested relative error, above 0.
        confidence: Confidence level of the intervals, between 0 and 1.
        min_rounds: Minimum number of rounds.
        max_seconds: Time limit.
        min_seconds: Minimum time.
    """

    rel_error: float
    confidence: float
    min_rounds: int
    max_seconds: float
    min_seconds: float = 0.0

    def __post_init__(self) -> None:
        require(self.rel_error > 0, f"rel_error is {self.rel_error}", "use a number above 0, such as 0.01")
        require(
            0 < self.confidence < 1,
            f"confidence is {self.confidence}",
            "use a number between 0 and 1, such as 0.99",
        )
        require(
            self.min_rounds >= FEWEST_ROUNDS,
            f"min_rounds is {self.min_rounds}",
            f"use {FEWEST_ROUNDS} or more, such as 60",
        )
        require(
            0 <= self.min_seconds <= self.max_seconds and self.max_seconds > 0,
            f"min_seconds is {self.min_seconds} and max_seconds is {self.max_seconds}",
            "use 0 <= min_seconds <= max_seconds, and max_seconds above 0",
        )


@dataclass(frozen=True)
class Rounds:
    """Result of the sampling loop.

    Attributes:
        samples: Seconds per call: for each variant, float64 of shape (rounds, repeats within a round).
        calls: Number of calls per sample of each variant.
        stopped: Condition that ended the loop.
    """

    samples: Samples
    calls: tuple[int, ...]
    stopped: StopReason


class Variant:
    """Callable with its inputs; a sample is the time of one or more calls."""

    def __init__(self, function: Callable[..., object], inputs: Inputs) -> None:
        self.function = function
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, tuple) and not callable(inputs):
            raise OptionError(
                f"inputs is a {type(inputs).__name__}",
                "use a tensor, a tuple of arguments, or a function without parameters that returns a tuple",
            )
        self.inputs = inputs

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of one call: the given tuple, or a new one from the given function."""
        return self.inputs if isinstance(self.inputs, tuple) else self.inputs()

    def seconds(self, clock: Clock, calls: int) -> float:
        """Return the seconds that `calls` calls take; their arguments are made before the clock starts."""
        arguments = [self.arguments() for _ in range(calls)]

        def run() -> None:
            for values in arguments:
                self.function(*values)

        return clock.elapsed(run)

    def calls_per_sample(self, clock: Clock) -> tuple[int, float]:
        """Warm up, then return the number of calls that a reliable sample needs and the seconds it takes."""
        spent = 0.0
        for _ in range(WARM_UP_CALLS):
            if spent < WARM_UP_SECONDS:
                spent += self.seconds(clock, 1)
        calls = 1
        while (seconds := self.seconds(clock, calls)) < SHORTEST_SAMPLE and calls < MOST_CALLS:
            # Grow at most tenfold: a very short sample is a poor guide to the number of calls needed.
            needed = calls * SHORTEST_SAMPLE / seconds if seconds > 0 else math.inf
            calls = min(MOST_CALLS, 10 * calls, max(calls + 1, math.ceil(min(needed, MOST_CALLS))))
        return calls, seconds


def balanced_repeats(seconds: Sequence[float]) -> list[int]:
    """Return how many samples of each variant a round takes, so that quick variants are sampled more often.

    Short samples are the noisiest and the cheapest. Each variant gets as many as fit into the mean time, from
    1 to 8. This makes a round over the attention and FFN sizes of BERT-base a third longer.

    Args:
        seconds: Time of one sample of each variant.
    """
    mean = math.fsum(seconds) / len(seconds)
    return [
        max(1, min(MOST_REPEATS, round(mean / value))) if value > 0 else MOST_REPEATS for value in seconds
    ]


def equal_repeats(seconds: Sequence[float]) -> list[int]:
    """Return how many samples of each variant a round takes, so that all take about as long as the slowest.

    On a busy machine, a short sample often falls between two interruptions, and a long one never does. Low
    percentiles of elapsed time then favour quick variants, at times by a factor (``bench/profiler.py load``).
    Means over samples that add up to the same time meet the same number of interruptions.

    Args:
        seconds: Time of one sample of each variant.
    """
    longest = max(seconds)
    return [
        max(1, min(MOST_REPEATS, round(longest / value))) if value > 0 else MOST_REPEATS for value in seconds
    ]


def once(seconds: Sequence[float]) -> list[int]:
    """Return one sample of each variant in a round."""
    return [1] * len(seconds)


def run_rounds(
    variants: Sequence[Variant],
    clock: Clock,
    stopping: Stopping,
    error: Callable[[Samples], float],
    *,
    repeats: Callable[[Sequence[float]], list[int]] = once,
    seed: int = 0,
    progress: Progress | None = None,
) -> Rounds:
    """Sample all variants in every round, in a new random order each time, until `stopping` applies.

    Variants timed one after the other meet different load on the machine, and their medians can differ by
    10 % for the same work. Interleaved variants share the load, and the random order ensures that no variant
    always follows the same other one.

    Args:
        variants: Variants to time.
        clock: Clock for the samples and for the time limits.
        stopping: Rule for when to stop.
        error: Function from the samples to the relative error that is compared with `stopping.rel_error`.
        repeats: Function from the time of one sample of each variant to their numbers of samples in a round:
            `once`, `balanced_repeats` or `equal_repeats`.
        seed: Seed of the random orders.
        progress: Called after each round with the number of rounds and the fraction of the time limit used;
            the fraction is 1.0 at the end.
    """
    calls, seconds = zip(*(variant.calls_per_sample(clock) for variant in variants), strict=True)
    counts = repeats(seconds)
    report = progress or _no_progress
    generator = np.random.default_rng(seed)
    rows: list[list[float]] = []
    next_check = stopping.min_rounds
    start = clock.now()
    while True:
        rows.append(_sample_round(variants, calls, counts, clock, generator))
        rounds, spent = len(rows), clock.now() - start
        out_of_time = spent >= stopping.max_seconds and rounds >= FEWEST_ROUNDS
        if out_of_time or (rounds >= next_check and spent >= stopping.min_seconds):
            samples = np.split(np.array(rows), np.cumsum(counts)[:-1], axis=1)
            precise = rounds >= stopping.min_rounds and error(samples) <= stopping.rel_error
            if precise or out_of_time:
                report(rounds, 1.0)
                return Rounds(samples, calls, "rel_error" if precise else "max_seconds")
            next_check = math.ceil(CHECK_GROWTH * rounds)
        report(rounds, min(1.0, spent / stopping.max_seconds))


def _sample_round(
    variants: Sequence[Variant],
    calls: Sequence[int],
    repeats: Sequence[int],
    clock: Clock,
    generator: np.random.Generator,
) -> list[float]:
    """Take the samples of one round in random order.

    Returns:
        Seconds per call of each sample: all repeats of the first variant, then of the second, and so on.
    """
    variant_of_sample = [index for index, count in enumerate(repeats) for _ in range(count)]
    row = [0.0] * len(variant_of_sample)
    for place in generator.permutation(len(row)):
        index = variant_of_sample[place]
        row[place] = variants[index].seconds(clock, calls[index]) / calls[index]
    return row


def _no_progress(rounds: int, fraction: float) -> None:
    """Ignore progress reports."""

"""The measuring loop: rounds that sample every variant once, in random order, until precise or late."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from latency_profiler._clock import Clock
from latency_profiler._errors import OptionError, require
from latency_profiler._statistics import Samples

Inputs = torch.Tensor | tuple[Any, ...] | Callable[[], tuple[Any, ...]]
Progress = Callable[[int, float], None]
StopReason = Literal["rel_error", "max_seconds"]

# No statement about the spread can be made from fewer rounds, however late it is.
FEWEST_ROUNDS = 5
# Shorter samples are dominated by the clock and by single interrupts; a quick callable is called repeatedly.
SHORTEST_SAMPLE = 1e-3
MOST_CALLS = 1 << 16
MOST_REPEATS = 8
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Stopping:
    """When to stop: after `min_rounds` and `min_seconds` once `rel_error` is met, or after `max_seconds`."""

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
            f"use {FEWEST_ROUNDS} or more; 60 is a good number",
        )
        require(
            0 <= self.min_seconds <= self.max_seconds and self.max_seconds > 0,
            f"min_seconds is {self.min_seconds} and max_seconds {self.max_seconds}",
            "use 0 <= min_seconds <= max_seconds, and max_seconds above 0",
        )


@dataclass(frozen=True)
class Rounds:
    """The samples; the calls per sample of each variant; why it stopped."""

    samples: Samples
    calls: tuple[int, ...]
    stopped: StopReason


class Variant:
    """A callable with its inputs, sampled in batches of calls."""

    def __init__(self, function: Callable[..., object], inputs: Inputs) -> None:
        self.function = function
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, tuple) and not callable(inputs):
            raise OptionError(
                f"inputs is a {type(inputs).__name__}",
                "use a tensor, a tuple of arguments, or a function of nothing that returns such a tuple",
            )
        self.inputs = inputs

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of one call: the tuple that was given, or a fresh one from the function."""
        return self.inputs if isinstance(self.inputs, tuple) else self.inputs()

    def seconds(self, clock: Clock, calls: int) -> float:
        """Seconds of `calls` calls in a row; their arguments are made before the clock starts."""
        arguments = [self.arguments() for _ in range(calls)]

        def run() -> None:
            for values in arguments:
                self.function(*values)

        return clock.elapsed(run)

    def calls_per_sample(self, clock: Clock) -> tuple[int, float]:
        """Warm up, then find how many calls make a sample that can be timed, and the seconds they take."""
        for _ in range(WARM_UP_CALLS):
            self.seconds(clock, 1)
        calls = 1
        while (seconds := self.seconds(clock, calls)) < SHORTEST_SAMPLE and calls < MOST_CALLS:
            # At most tenfold, since a very short sample says little about how many calls are needed.
            wanted = calls * SHORTEST_SAMPLE / seconds if seconds > 0 else math.inf
            calls = min(MOST_CALLS, 10 * calls, max(calls + 1, math.ceil(min(wanted, MOST_CALLS))))
        return calls, seconds


def balanced_repeats(seconds: Sequence[float]) -> list[int]:
    """How often to sample variants that take `seconds`, so that the quick ones get a fair share of the time.

    Short samples are the noisiest and cost the least: each variant gets as many as fit into the mean time,
    from 1 to 8. A round of BERT-base's attention and FFN sizes grows by a third for it.
    """
    mean = math.fsum(seconds) / len(seconds)
    return [
        max(1, min(MOST_REPEATS, round(mean / value))) if value > 0 else MOST_REPEATS for value in seconds
    ]


def run_rounds(
    variants: Sequence[Variant],
    clock: Clock,
    stopping: Stopping,
    error: Callable[[Samples], float],
    *,
    balanced: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Rounds:
    """Sample all variants in every round, in an order drawn anew each time, until done.

    One after the other, variants meet different weather: medians are then off by 10 %. Interleaved, they
    share it; and since the order is random, none always comes after the same other one.

    Args:
        variants: What to time.
        clock: Times the samples; its `now` is asked for the limits.
        stopping: The rule.
        error: From samples to the relative error that is compared with the wanted one.
        balanced: Sample quick variants several times a round; otherwise all once.
        seed: Of the orders.
        progress: Called after each round with the number of rounds and the fraction of the time limit that is
            used up, 1.0 at the end.
    """
    calls, seconds = zip(*(variant.calls_per_sample(clock) for variant in variants), strict=True)
    repeats = balanced_repeats(seconds) if balanced else [1] * len(variants)
    slots = [index for index, count in enumerate(repeats) for _ in range(count)]
    ends = np.cumsum(repeats)[:-1]  # where the slots of one variant end and those of the next begin
    generator = np.random.default_rng(seed)
    rows: list[list[float]] = []
    start = clock.now()
    next_check = stopping.min_rounds
    while True:
        row = [0.0] * len(slots)
        for slot in generator.permutation(len(slots)):
            index = slots[slot]
            row[slot] = variants[index].seconds(clock, calls[index]) / calls[index]
        rows.append(row)
        rounds, spent = len(rows), clock.now() - start
        late = spent >= stopping.max_seconds and rounds >= FEWEST_ROUNDS
        if late or (rounds >= next_check and spent >= stopping.min_seconds):
            samples = np.split(np.array(rows), ends, axis=1)
            precise = rounds >= stopping.min_rounds and error(samples) <= stopping.rel_error
            if precise or late:
                if progress:
                    progress(rounds, 1.0)
                return Rounds(samples, calls, "rel_error" if precise else "max_seconds")
            # Looking seldom keeps the cost of the bootstrap and the temptation of a lucky moment small.
            next_check = math.ceil(1.2 * rounds)
        if progress:
            progress(rounds, min(1.0, spent / stopping.max_seconds))

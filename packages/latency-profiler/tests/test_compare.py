"""Ratios between variants, on a fake clock with known load."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from latency_profiler import OptionError, compare, measure
from latency_profiler._statistics import bootstrap, interval, percentile_20
from latency_profiler_clock import FakeClock


def test_constant_work_gives_the_exact_ratio() -> None:
    clock = FakeClock()
    result = compare(
        {"f": clock.work(0.5), "g": clock.work(0.25), "h": clock.work(1.0)}, clock=clock, max_seconds=1e3
    )
    assert (result.ratio("g").value, result.ratio("h").value, result.ratio("g", to="h").value) == (
        0.5,
        2.0,
        0.25,
    )
    assert (result.speedup("g").value, result.speedup("g", over="h").value) == (2.0, 4.0)
    assert (result.ratio("h").low, result.ratio("h").high) == (2.0, 2.0)
    assert list(result) == ["f", "g", "h"]
    assert result["g"].seconds == 0.25
    assert (result.samples.shape, result.stopped) == ((60, 3), "rel_error")


def test_ratio_is_between_20th_percentiles() -> None:
    clock = FakeClock()
    result = compare(
        {"f": clock.work(1.0, 2.0, 3.0, 9.0, 27.0), "g": clock.work(2.0, 3.0, 5.0, 7.0)},
        clock=clock,
        max_seconds=1e3,
    )
    f, g = np.percentile(result.samples, 20, axis=0)
    assert result.ratio("g").value == g / f


def test_every_round_runs_every_variant_once_in_random_order() -> None:
    clock = FakeClock()
    order: list[str] = []

    def variant(name: str) -> None:
        order.append(name)
        clock.time += 1.0

    compare(
        {name: (lambda name=name: variant(name)) for name in "abc"},
        clock=clock,
        min_rounds=60,
        max_seconds=1e6,
    )
    measured = order[-180:]
    rounds = [tuple(measured[start : start + 3]) for start in range(0, 180, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) == 6


def drifting(clock: FakeClock, seconds: float) -> Iterator[float]:
    """Yield times on a machine that slows down: at 100 s work takes twice as long as at the start."""
    while True:
        yield seconds * (1 + clock.time / 100)


def test_drift_cancels_in_interleaved_rounds() -> None:
    clock = FakeClock()
    variants = {"f": clock.work_by(drifting(clock, 0.1)), "same": clock.work_by(drifting(clock, 0.1))}
    ratio = compare(variants, clock=clock, max_seconds=30).ratio("same")
    assert 1.0 in ratio
    assert ratio.value == pytest.approx(1.0, abs=0.01)
    # Control: measured one after the other, the same work seems much slower the second time.
    clock = FakeClock()
    first, second = (
        measure(clock.work_by(drifting(clock, 0.1)), clock=clock, max_seconds=15, rel_error=1e-9)
        for _ in range(2)
    )
    assert second.seconds / first.seconds > 1.1


def noisy(generator: np.random.Generator, seconds: float) -> Iterator[float]:
    """Yield times on a busy machine: always a little noise, and often a long wait."""
    while True:
        wait = generator.exponential(0.5) if generator.random() < 0.3 else 0.0
        yield seconds * (generator.lognormal(0.0, 0.02) + wait)


def test_intervals_of_noisy_work_contain_the_true_ratio() -> None:
    inside = {1.0: 0, 1.05: 0}
    wrong_value_inside = 0
    for seed, true in itertools.product(range(60), inside):
        clock, generator = FakeClock(), np.random.default_rng(seed)
        variants = {
            "f": clock.work_by(noisy(generator, 0.1)),
            "g": clock.work_by(noisy(generator, true * 0.1)),
        }
        ratio = compare(variants, clock=clock, rel_error=0.02, max_seconds=40, seed=seed).ratio("g")
        inside[true] += true in ratio
        wrong_value_inside += (2.05 - true) in ratio
    assert inside[1.0] >= 57
    assert inside[1.05] >= 57
    assert wrong_value_inside <= 6  # very wide intervals would pass the assertions above, but not this one


def test_stops_when_the_ratios_are_precise_even_if_the_times_are_not() -> None:
    """Speeds vary threefold between rounds and are equal within a round.

    Each speed is used for two calls, and the warm-up is an even number of calls, so rounds stay aligned.
    """
    clock, generator = FakeClock(), np.random.default_rng(0)
    speeds = itertools.chain.from_iterable(
        itertools.repeat(generator.uniform(1, 3), 2) for _ in itertools.count()
    )
    work = clock.work_by(speeds)
    result = compare({"f": work, "g": work}, clock=clock, max_seconds=1e5)
    assert result.stopped == "rel_error"
    assert result["f"].rel_error > 0.05
    assert result.ratio("g").value == pytest.approx(1.0, abs=0.01)


def test_time_limit_is_respected_and_reported() -> None:
    clock, generator = FakeClock(), np.random.default_rng(0)
    variants = {name: clock.work_by(noisy(generator, 1.0)) for name in "fg"}
    result = compare(variants, clock=clock, rel_error=1e-6, max_seconds=200)
    assert result.stopped == "max_seconds"
    assert result.samples.sum(axis=1)[:-1].sum() < 200 <= result.samples.sum() + 1e-9


def test_neighbouring_rounds_are_resampled_together() -> None:
    """If neighbouring rounds are alike, the interval must be wider than for the same rounds shuffled."""
    generator = np.random.default_rng(0)
    correlated = np.repeat(generator.normal(10.0, 1.0, size=64), 8)[:, None]
    shuffled = generator.permutation(correlated)

    def width(samples: np.ndarray) -> float:
        low, high = interval(bootstrap([samples], percentile_20), 0.95)
        return float(high[0] - low[0])

    assert width(correlated) > 1.5 * width(shuffled)


def test_many_rounds_are_resampled_in_chunks() -> None:
    samples = np.random.default_rng(0).normal(10.0, 1.0, size=(20_000, 1))
    low, high = interval(bootstrap([samples], percentile_20), 0.99)
    true = 10.0 - 0.8416  # the 20th percentile of the normal distribution
    assert low[0] < true < high[0]
    assert high[0] - low[0] < 0.1


def test_inputs_are_made_anew_for_each_call_and_not_timed() -> None:
    clock = FakeClock()
    made, used = [], []

    def inputs() -> tuple[int, ...]:
        clock.time += 100.0
        made.append(len(made))
        return (made[-1],)

    def work(value: int) -> None:
        used.append(value)
        clock.time += 2.0**-11  # a sample needs three calls

    result = compare({"f": work, "g": work}, inputs, clock=clock, max_seconds=1e6)
    assert result["f"].seconds == 2.0**-11
    assert result["f"].calls == 3
    assert len(set(used)) == len(used)


def test_modules_are_compared_on_a_tensor_with_the_real_clock() -> None:
    model = torch.nn.Linear(8, 8)
    result = compare({"a": model, "b": model}, torch.ones(2, 8), max_seconds=0.2)
    assert result["a"].seconds > 0


def test_comparison_as_text() -> None:
    clock = FakeClock()
    result = compare({"dense": clock.work(0.5), "pruned": clock.work(0.25)}, clock=clock)
    assert repr(result).splitlines() == [
        "60 rounds, stopped by rel_error",
        "  dense: 500 ms",
        "  pruned: 250 ms, 2.000 [2.000, 2.000] x the speed of dense",
    ]


def test_invalid_arguments_are_reported() -> None:
    clock = FakeClock()
    with pytest.raises(OptionError, match="compare needs at least two variants, got 1; add a variant"):
        compare({"f": clock.work(1.0)}, clock=clock)
    with pytest.raises(OptionError, match="inputs is a list; use a tensor"):
        compare({"f": clock.work(1.0), "g": clock.work(1.0)}, [1], clock=clock)  # type: ignore[arg-type]
    result = compare({"f": clock.work(1.0), "g": clock.work(1.0)}, clock=clock)
    with pytest.raises(OptionError, match="unknown variant 'h'; use one of 'f', 'g'"):
        result.ratio("h")


class WallFakeClock(FakeClock):
    name = "wall"


def test_quick_variants_meet_as_many_interruptions_as_slow_ones_by_the_wall_clock() -> None:
    """Work is interrupted for ten seconds after every two; the slow variant works four times as long.

    Control: with one sample of each in a round, low percentiles find quick samples without interruptions.
    """
    speedups = {}
    for kind in (WallFakeClock, FakeClock):
        clock, worked = kind(), [0.0]

        def work(
            seconds: float, clock: FakeClock = clock, worked: list[float] = worked
        ) -> Callable[..., None]:
            def run() -> None:
                before = worked[0] // 2
                worked[0] += seconds
                clock.time += seconds + 10 * (worked[0] // 2 - before)

            return run

        variants = {"slow": work(4.0), "quick": work(1.0)}
        result = compare(variants, clock=clock, min_rounds=60, max_seconds=5000, rel_error=1e-6)
        speedups[clock.name] = result.speedup("quick").value
    assert speedups["wall"] == pytest.approx(4.0, rel=0.15)
    assert speedups["fake"] > 20

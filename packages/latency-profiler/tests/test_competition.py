"""Other processes on the same cores: how much they use, and what intervals of ratios make of it."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from latency_profiler import Comparison, CpuClock, DeviceClock, WallClock, _competition, compare
from latency_profiler._competition import (
    LARGEST_CHANGE,
    NEGLIGIBLE,
    TYPICAL_CHANGE,
    log_doubt,
    log_slowdown,
    watch_others,
)
from latency_profiler_clock import FakeClock

CORES = frozenset({1, 3})


class BusyClock(FakeClock):
    """A fake clock on a machine where other processes use a share of the cores."""

    def __init__(self, share: float, name: str = "fake") -> None:
        super().__init__()
        self.share = share
        self.name = name

    def watch(self) -> Callable[[], float]:
        return lambda: self.share


def slowed(generator: np.random.Generator, seconds: float, by: float) -> Iterator[float]:
    """Yield times that all are longer by about the same share, as beside processes that never pause."""
    while True:
        yield seconds * (1 + by * generator.uniform(0.9, 1.1))


def compared(clock: FakeClock, small: float, slower: tuple[float, float] = (0.0, 0.0)) -> Comparison:
    """Compare a model that takes 1 s with a smaller one, both slowed by others."""
    generator = np.random.default_rng(0)
    variants = {
        "dense": clock.work_by(slowed(generator, 1.0, slower[0])),
        "small": clock.work_by(slowed(generator, small, slower[1])),
    }
    return compare(variants, clock=clock, max_seconds=1e3)


# Excess CPU times of a dense model and of smaller ones, as once seen beside three processes that multiplied
# matrices without pause: (true speedup, excess of the dense model, excess of the small one).
SEEN = [(3.15, 0.16, 0.21), (4.24, 0.16, 0.23), (6.46, 0.16, 0.28)]


@pytest.mark.parametrize(("speedup", "dense", "small"), SEEN)
def test_intervals_include_what_competition_may_have_changed(
    speedup: float, dense: float, small: float
) -> None:
    corrected = compared(BusyClock(0.75, "cpu"), 1 / speedup, (dense, small)).speedup("small")
    assert speedup in corrected
    assert corrected.value == pytest.approx(speedup, rel=0.05)
    other = compared(BusyClock(0.75), 1 / speedup, (dense, small)).speedup("small")  # not in CPU time
    assert speedup in other
    assert other.value < 0.97 * speedup
    assert other.value < corrected.value
    # Control: rounds alone cannot know that all of them were slowed.
    assert speedup not in compared(FakeClock(), 1 / speedup, (dense, small)).speedup("small")


@pytest.mark.parametrize("small", [0.1, 0.5, 1.0, 4.0])
def test_a_corrected_interval_contains_the_ratio_of_the_samples(small: float) -> None:
    """Competition may also have changed nothing."""
    result = compared(BusyClock(0.75, "cpu"), small)
    plain = compared(FakeClock(), small)
    for found, known in (
        (result.speedup("small"), plain.speedup("small")),
        (result.ratio("small"), plain.ratio("small")),
    ):
        assert known.value in found
        assert abs(math.log(found.value)) >= abs(math.log(known.value))  # never closer to 1
        expected = known.value ** (1 + 0.75 * TYPICAL_CHANGE)
        assert found.value == pytest.approx(expected, rel=1e-12)
        assert math.log(1 + found.doubt) == pytest.approx(
            0.75 * (LARGEST_CHANGE - TYPICAL_CHANGE) * abs(math.log(known.value))
        )


def test_an_interval_on_a_quiet_machine_is_that_of_the_rounds() -> None:
    unknown = compared(FakeClock(), 0.25).speedup("small")
    for share in (0.0, 0.9 * NEGLIGIBLE):
        result = compared(BusyClock(share), 0.25)
        assert result.speedup("small") == unknown
        assert result.competition == share
        assert "other processes" not in repr(result)
    assert unknown.doubt == 0


def test_the_more_the_work_differs_the_wider_is_the_interval() -> None:
    doubts = [compared(BusyClock(0.5), small).speedup("small").doubt for small in (1.0, 1 / 1.05, 0.5, 0.1)]
    assert doubts == pytest.approx(
        [math.exp(0.5 * LARGEST_CHANGE * math.log(x)) - 1 for x in (1, 1.05, 2, 10)]
    )
    # 5 % more of the same work can still be told from equal work.
    assert 1.0 not in compared(BusyClock(1.0), 1 / 1.05).speedup("small")


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_doubt_is_the_same_for_a_ratio_and_its_inverse(clock: str) -> None:
    result = compared(BusyClock(0.5, clock), 0.25)
    ratio, speedup = result.ratio("small"), result.speedup("small")
    assert ratio.value == pytest.approx(1 / speedup.value, rel=1e-12)
    assert ratio.doubt == pytest.approx(speedup.doubt)
    assert ratio.low == pytest.approx(1 / speedup.high, rel=0.01)


def test_a_comparison_says_how_busy_the_machine_was() -> None:
    assert "while other processes used 75% of the cores" in repr(compared(BusyClock(0.75), 0.5))


def test_doubt_begins_where_competition_is_not_negligible() -> None:
    assert log_doubt(0.9 * NEGLIGIBLE, 1.0, corrected=False) == 0
    assert log_doubt(NEGLIGIBLE, -1.0, corrected=False) == NEGLIGIBLE * LARGEST_CHANGE
    assert log_slowdown(0.9 * NEGLIGIBLE, 1.0) == 0
    assert log_slowdown(NEGLIGIBLE, -1.0) == -NEGLIGIBLE * TYPICAL_CHANGE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets the time, the CPU time of this process and that of cores 0 to 3."""
    statistics, now = tmp_path / "stat", {"wall": 0.0, "own": 0.0}
    monkeypatch.setattr(_competition, "STATISTICS", statistics)
    monkeypatch.setattr(_competition, "usable_cores", lambda: CORES)
    monkeypatch.setattr(_competition.time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(_competition.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(_competition.os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])

    def set_to(wall: float, own: float, busy: tuple[float, ...] | None) -> None:
        now.update(wall=wall, own=own)
        if busy is None:
            statistics.unlink(missing_ok=True)
            return
        lines = [f"cpu{core} {seconds * 100:.0f} 0 0 7 5 0 0 0 3 0" for core, seconds in enumerate(busy)]
        statistics.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 1 2 3", ""]))

    return set_to


def test_what_others_use_of_this_processs_cores_is_counted(machine: Callable[..., None]) -> None:
    machine(100.0, 5.0, (50.0, 10.0, 90.0, 20.0))
    share = watch_others()
    machine(110.0, 12.0, (60.0, 20.0, 100.0, 25.0))  # 15 s on cores 1 and 3, of which 7 s are its own
    assert share() == pytest.approx((15 - 7) / (2 * 10))


@pytest.mark.parametrize(("busy", "expected"), [(3.0, 0.0), (25.0, 1.0)])
def test_rounding_of_the_systems_counts_stays_within_0_and_1(
    machine: Callable[..., None], busy: float, expected: float
) -> None:
    machine(0.0, 0.0, (0.0, 0.0, 0.0, 0.0))
    share = watch_others()
    assert share() == 0  # no time has passed
    machine(10.0, 4.0, (0.0, busy, 0.0, 0.0))
    assert share() == expected


def test_the_load_average_stands_in_where_the_system_does_not_count(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_competition.os, "getloadavg", lambda: (1.6, 9.0, 9.0), raising=False)
    machine(0.0, 0.0, None)
    share = watch_others()
    machine(10.0, 8.0, None)
    assert share() == pytest.approx((1.6 * 10 - 8) / (2 * 10))
    monkeypatch.delattr(_competition.os, "getloadavg")
    assert share() == 0


@pytest.mark.parametrize("clock", [WallClock(), CpuClock()])
def test_clocks_of_the_cpu_watch_others(clock: WallClock) -> None:
    share = clock.watch()
    assert 0 <= share() <= 1


def test_an_accelerator_does_not_compete_with_processes_on_the_cores() -> None:
    import torch

    assert DeviceClock(torch.device("cuda")).watch()() == 0


def test_usable_cores_are_those_of_the_process() -> None:
    cores = _competition.usable_cores()
    assert 1 <= len(cores) <= (os.cpu_count() or 1)

"""Results of `measure` for callables whose times are known exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from latency_profiler import OptionError, measure
from latency_profiler._rounds import WARM_UP_CALLS
from latency_profiler._timing import format_seconds
from latency_profiler_clock import FakeClock


def test_constant_work_is_measured_exactly_and_stops_after_min_rounds() -> None:
    clock = FakeClock()
    timing = measure(clock.work(0.25), clock=clock, min_rounds=60, max_seconds=1e6)
    assert (timing.seconds, timing.low, timing.high) == (0.25, 0.25, 0.25)
    assert (timing.minimum, timing.median, timing.maximum, timing.spread) == (0.25, 0.25, 0.25, 0.0)
    assert (timing.runs, timing.calls, timing.stopped, timing.rel_error) == (60, 1, "rel_error", 0.0)


@pytest.mark.parametrize(
    ("first", "calls"), [(64.0, 1), (0.625, 1), (0.375, 2), (0.125, WARM_UP_CALLS), (1 / 64, WARM_UP_CALLS)]
)
def test_statistics_are_those_of_the_samples_after_the_warm_up(first: float, calls: int) -> None:
    """Slow callables are called less often before the samples."""
    clock = FakeClock()
    times = [1.0, 1.25, 1.5, 2.0, 4.0]
    untimed = [first] * (calls + 1)  # warm-up, and the call that determines the calls per sample
    timing = measure(clock.work_by(iter([*untimed, *times])), clock=clock, min_rounds=5, max_seconds=9.75)
    assert timing.seconds == np.percentile(times, 20)
    assert timing.median == 1.5
    assert timing.spread == (2.0 - 1.25) / 1.5
    assert (timing.minimum, timing.maximum, timing.runs) == (1.0, 4.0, 5)
    assert timing.low <= timing.seconds <= timing.high


def test_stops_at_the_time_limit_and_reports_it() -> None:
    clock = FakeClock()
    timing = measure(clock.work(1.0, 2.0, 3.0, 5.0), clock=clock, rel_error=1e-6, max_seconds=110)
    # 3 warm-up calls and 1 to determine the calls per sample, then 1 + 2 + 3 + 5 = 11 seconds per four runs
    assert (timing.stopped, timing.runs) == ("max_seconds", 40)


def test_takes_at_least_five_samples_even_beyond_the_time_limit() -> None:
    clock = FakeClock()
    timing = measure(clock.work(100.0), clock=clock, max_seconds=1.0, min_seconds=0.0)
    assert (timing.runs, timing.stopped) == (5, "max_seconds")


def test_reports_precision_if_the_time_limit_is_reached_in_the_same_round() -> None:
    clock = FakeClock()
    timing = measure(clock.work(1.0), clock=clock, min_rounds=5, max_seconds=5.0)
    assert (timing.runs, timing.stopped) == (5, "rel_error")


def test_min_seconds_prolongs_the_measurement() -> None:
    clock = FakeClock()
    timing = measure(clock.work(0.5), clock=clock, min_rounds=5, min_seconds=20.0, max_seconds=100.0)
    assert timing.runs == 40


@pytest.mark.parametrize(("seconds", "calls"), [(2.0**-9, 1), (2.0**-13, 9), (2.0**-20, 1049)])
def test_short_calls_are_repeated_until_a_sample_takes_a_millisecond(seconds: float, calls: int) -> None:
    clock = FakeClock()
    timing = measure(clock.work(seconds), clock=clock, min_seconds=0.0)
    assert timing.calls == calls
    assert timing.seconds == seconds


def test_work_that_takes_no_time_terminates() -> None:
    clock = FakeClock()
    count = 0

    def nothing() -> None:
        nonlocal count
        count += 1
        clock.time += 1.0 if count > 2**17 else 0.0  # so that the time limit of the fake clock is reached

    assert measure(nothing, clock=clock, min_seconds=0.0, min_rounds=5).calls == 2**16


@given(st.lists(st.floats(0.002, 10.0), min_size=5, max_size=40))
def test_interval_and_estimate_lie_within_the_samples(times: list[float]) -> None:
    clock = FakeClock()
    timing = measure(clock.work(*times), clock=clock, min_rounds=5, max_seconds=sum(times), min_seconds=0.0)
    assert timing.minimum <= timing.low <= timing.high <= timing.maximum
    assert timing.minimum <= timing.seconds <= timing.median


def test_arguments_are_passed_on_and_threads_are_pinned_and_restored() -> None:
    clock = FakeClock()
    seen = set()

    def work(x: int, y: int) -> None:
        seen.add((x, y, torch.get_num_threads()))
        clock.time += 1.0

    before = torch.get_num_threads()
    measure(work, 1, 2, clock=clock, threads=before + 1)
    assert seen == {(1, 2, before + 1)}
    assert torch.get_num_threads() == before


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, threads=before + 1)
    assert torch.get_num_threads() == before


def test_modules_run_in_inference_mode_and_functions_do_not() -> None:
    clock = FakeClock()
    seen = []

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            clock.time += 1.0
            seen.append(torch.is_inference_mode_enabled())

    def function(x: torch.Tensor) -> None:
        Module()(x)

    measure(Module(), torch.ones(1), clock=clock)
    assert set(seen) == {True}
    seen.clear()
    measure(function, torch.ones(1), clock=clock)
    assert set(seen) == {False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rel_error": 0.0}, "rel_error is 0.0; use a number above 0"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"min_rounds": 4}, "min_rounds is 4; use 5 or more"),
        ({"max_seconds": 0.0}, "min_seconds is 0.2 and max_seconds is 0.0"),
        ({"threads": 0}, "threads is 0"),
        ({"clock": "sun"}, "unknown clock 'sun'"),
        (
            {"clock": "cpu", "threads": 2},
            "clock 'cpu' sums the time of all threads, and torch uses 2 threads",
        ),
    ],
)
def test_invalid_options_are_reported(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match="^" + message.replace("(", r"\(")) as caught:
        measure(lambda: None, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_timing_as_text() -> None:
    clock = FakeClock()
    text = str(measure(clock.work(0.0125), clock=clock))
    assert text == "12.5 ms ± 0.0% (60 runs, median 12.5 ms)"


def test_timing_on_a_busy_machine_says_what_that_means() -> None:
    clock = FakeClock()
    times = [1.0, 1.0, 1.0, 1.0, 16.0, 16.0, 16.0]
    timing = measure(clock.work(*times), clock=clock, min_rounds=70, max_seconds=sum(times) * 10)
    assert timing.spread == 15.0
    assert timing.slow_runs == 16.0
    text = (
        "70 runs, median 1 s; a quarter of them took at least 16.0x the reported time: the machine was busy)"
    )
    assert text in str(timing)
    assert "spread" not in str(timing)


@given(st.lists(st.floats(0.002, 10.0), min_size=5, max_size=40))
def test_a_quarter_of_the_samples_are_as_slow_as_slow_runs_says(times: list[float]) -> None:
    clock = FakeClock()
    untimed = [0.1] * (WARM_UP_CALLS + 1)
    work = clock.work_by(iter([*untimed, *times]))
    timing = measure(
        work, clock=clock, min_rounds=len(times), max_seconds=1e6, min_seconds=0.0, rel_error=1e9
    )
    assert timing.runs == len(times)
    assert timing.slow_runs * timing.seconds <= np.percentile(times, 75) * (1 + 1e-9)
    assert timing.slow_runs * timing.seconds >= timing.median * (1 - 1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s"), (0.01231, "12.31 ms"), (2e-5, "20 µs"), (3e-8, "30 ns"), (0.0, "0 ns")],
)
def test_seconds_are_formatted_with_suitable_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text

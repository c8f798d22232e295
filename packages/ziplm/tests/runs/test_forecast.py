"""A forecast says where the run is, and learns from what stages took."""

import pytest
from ziplm.runs.forecast import Forecast, duration

ONCE = {"profile": 0.0, "calibrate": 100.0, "prune": 20.0}
TARGETS = {"2x": {"search": 50.0, "evaluate": 10.0}, "4x": {"search": 50.0, "evaluate": 10.0}}


def test_the_time_left_is_what_is_estimated_until_there_is_experience() -> None:
    forecast = Forecast(ONCE, TARGETS)
    assert forecast.seconds_left("calibrate") == 240
    assert forecast.seconds_left("calibrate", 30) == 210
    assert forecast.seconds_left("calibrate", 130) == 140  # a stage that takes longer has nothing left
    assert Forecast(ONCE, TARGETS, waiting=2.0).seconds_left("calibrate") == 480


def test_stages_that_take_longer_make_the_rest_longer() -> None:
    forecast = Forecast(ONCE, TARGETS)
    forecast.finish("calibrate", 300)
    left = forecast.seconds_left("prune")
    assert 2 * 140 < left < 3 * 140  # not all of it: the estimates keep some weight
    forecast.begin_target("2x")
    assert forecast.seconds_left("search") < left


def test_a_target_is_named_with_its_number_and_what_was_skipped_is_done() -> None:
    forecast = Forecast(ONCE, TARGETS)
    assert forecast.text("calibrate") == "calibrate · about 4 min left"
    forecast.begin_target("4x")  # everything before it was stored
    assert forecast.seconds_left("shrink") == 60
    assert forecast.text("search") == "search · target 4x (2 of 2) · about 60 s left"
    forecast.finish("search", 50)
    assert forecast.seconds_left("refit") == 10  # a stage that was not planned
    assert forecast.seconds_left("evaluate", 4) == 6


def test_nothing_to_do_takes_no_time() -> None:
    forecast = Forecast({}, {})
    assert forecast.seconds_left("search", 3) == forecast.total == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 0 min"), (7560, "2 h 6 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""Fit corrects levels by the measured time of the whole model, for uniform sizes and absolute times too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from latency_profiler import LatencyCurve, LatencyTable
from transformers import PreTrainedModel
from ziplm import UnreachableTarget
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.choices import SECONDS, Choices, Levels
from ziplm.stages.fit import fit_levels
from ziplm.stages.measure import Measured, measure
from ziplm.stages.profile import latency_table
from ziplm.stages.shrink import shrink_to_sizes
from ziplm.stages.traces import InOrder
from ziplm_choices import RIGHT, choices_with, predicted
from ziplm_clock import count_products
from ziplm_models import sizes_of
from ziplm_pipeline import CLASSIFIER, lively_model, named_traces

MODEL = lively_model(CLASSIFIER)
TRACES = named_traces(MODEL)
Measure = Callable[[PreTrainedModel], Measured]
SPEEDUPS = [1.2, 1.5, 1.8, 2, 2.2, 2.5, 3, 3.5, 4]


def choices_for(uniform: bool) -> Choices:
    """Return choices that fit the tiny model."""
    plain = choices_with(one=RIGHT)
    branches = architecture_of(MODEL).branches(MODEL)
    assert [own.branch.name for own in plain.levels] == [branch.name for branch in branches]
    return Choices(plain.levels, plain._priors, plain.table, uniform=uniform)


def machine(choices: Choices, factor: float, clock: float = 1.0) -> Measure:
    """Return a measurement in which shrunk models take `factor` times the predicted seconds.

    Args:
        choices: has the table that predicts.
        factor: error of the table for shrunk models; the dense model takes exactly the predicted seconds.
        clock: factor of all seconds, which leaves the speedup as it is.
    """

    def measure_small(small: PreTrainedModel) -> Measured:
        seconds, dense = factor * choices.table.predict(sizes_of(small)), choices.dense_seconds
        speedup = dense / seconds
        return Measured(speedup, speedup, speedup, clock * seconds, clock * dense)

    return measure_small


def measured_by(choices: Choices, measure_small: Measure) -> Callable[[Levels], Measured]:
    """Return a measurement of the tiny model with given levels."""
    in_order = InOrder(TRACES, [own.branch.name for own in choices.levels])
    return lambda levels: measure_small(shrink_to_sizes(MODEL, choices.chosen(levels), in_order))


def fit(
    choices: Choices, speedup: float, measure_small: Measure, *, absolute: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...], Measured]:
    """Return the levels before and after the fit, and a measurement of the latter."""
    budgets = {SECONDS: choices.dense_seconds / speedup}
    start = choices.solve("one", budgets)
    measure_levels = measured_by(choices, measure_small)
    found = fit_levels(choices, start, "one", budgets, measure_levels, absolute=absolute)
    assert 1 <= len(found.rounds) <= 4  # three corrections at most, and what the last one led to
    assert found.rounds[0]["predicted_seconds"] == pytest.approx(predicted(choices, start))
    return tuple(start.tolist()), found.levels, measure_levels(found.levels)


def is_uniform(choices: Choices, levels: Levels) -> bool:
    return all(len(set(sizes)) == 1 for sizes in choices.sizes(levels).values())


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("factor", [1.03, 1.1, 1.2])
def test_the_measured_speedup_meets_the_target_where_the_predicted_one_is_too_large(
    uniform: bool, factor: float
) -> None:
    choices = choices_for(uniform)
    missed = 0
    for speedup in SPEEDUPS:
        start, levels, final = fit(choices, speedup, machine(choices, factor))
        assert is_uniform(choices, levels) == uniform
        assert final.speedup >= speedup
        assert final.speedup == pytest.approx(choices.dense_seconds / factor / predicted(choices, levels))
        missed += choices.dense_seconds / factor / predicted(choices, start) < speedup
    assert missed >= len(SPEEDUPS) / 3  # control: without the fit, many of them miss


@pytest.mark.parametrize("uniform", [True, False])
def test_levels_stay_where_the_prediction_is_right(uniform: bool) -> None:
    choices = choices_for(uniform)
    for speedup in SPEEDUPS:
        start, levels, final = fit(choices, speedup, machine(choices, 1.0))
        assert levels == start
        assert final.speedup >= speedup


@pytest.mark.parametrize("uniform", [True, False])
def test_models_that_are_faster_than_predicted_become_larger(uniform: bool) -> None:
    choices = choices_for(uniform)
    start, levels, final = fit(choices, 3, machine(choices, 0.8))
    assert predicted(choices, levels) > predicted(choices, start)
    assert final.speedup >= 3


@pytest.mark.parametrize("uniform", [True, False])
def test_the_smallest_sizes_are_tried_before_a_target_is_given_up(uniform: bool) -> None:
    choices = choices_for(uniform)
    reachable = choices.largest_speedup / 1.5
    _, levels, final = fit(choices, 0.999 * reachable, machine(choices, 1.5))
    assert choices.sizes(levels) == {"attention": [0] * 3, "ffn": [0] * 3}
    assert final.speedup >= 0.999 * reachable
    with pytest.raises(UnreachableTarget, match="measured as a whole, the model does not reach the target"):
        fit(choices, 1.001 * reachable, machine(choices, 1.5))


def test_without_a_budget_of_seconds_the_levels_stay_and_nothing_is_measured() -> None:
    choices = choices_for(uniform=False)
    start = choices.solve("one", {SECONDS: choices.dense_seconds / 2})

    def measure_small(small: PreTrainedModel) -> Measured:
        raise AssertionError("a limit of size needs no measurement")

    found = fit_levels(choices, start, "one", {"params": 1.0}, measured_by(choices, measure_small))
    assert found.levels == tuple(start)
    assert found.rounds == []


@pytest.mark.parametrize("uniform", [True, False])
def test_levels_that_meet_the_target_at_once_are_measured_once(uniform: bool) -> None:
    """The finished model is measured later; until then, a second measurement would decide nothing."""
    choices = choices_for(uniform)
    seen: list[dict[str, list[int]]] = []

    def measure_small(small: PreTrainedModel) -> Measured:
        seen.append(sizes_of(small))
        return Measured(2.005, 2.0, 2.01, choices.dense_seconds / 2.005, choices.dense_seconds)

    budgets = {SECONDS: choices.dense_seconds / 2}
    start = choices.solve("one", budgets)
    found = fit_levels(choices, start, "one", budgets, measured_by(choices, measure_small))
    assert found.levels == tuple(start)
    assert seen == [choices.sizes(start)]


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("factor", [1.005, 0.995])
def test_a_miss_within_the_measured_interval_is_not_corrected(uniform: bool, factor: float) -> None:
    choices = choices_for(uniform)
    budgets = {SECONDS: choices.dense_seconds / 2}
    start = choices.solve("one", budgets)

    def levels_after(half: float) -> tuple[int, ...]:
        """Fit to measurements that are off by `factor` and have an interval of ± `half`."""

        def measure_levels(levels: Levels) -> Measured:
            seconds = factor * budgets[SECONDS] * choices.seconds(levels) / choices.seconds(start)
            speedup = choices.dense_seconds / seconds
            low, high = speedup * (1 - half), speedup * (1 + half)
            return Measured(speedup, low, high, seconds, choices.dense_seconds)

        return fit_levels(choices, start, "one", budgets, measure_levels).levels

    assert levels_after(half=0.01) == tuple(start)
    if factor > 1:
        assert levels_after(half=0.0) != tuple(start)  # control: if it is certain, it is corrected


@pytest.mark.parametrize("uniform", [True, False])
def test_the_seconds_decide_for_a_latency_and_the_ratio_for_a_speedup(uniform: bool) -> None:
    choices = choices_for(uniform)
    speedup = 2.5
    budget = choices.dense_seconds / speedup
    slow_clock = machine(choices, 1.0, clock=1.3)  # the predicted speedups are right, the seconds are not
    start, levels, final = fit(choices, speedup, slow_clock, absolute=True)
    assert final.seconds <= budget
    assert predicted(choices, levels) < predicted(choices, start)
    start, levels, final = fit(choices, speedup, slow_clock)
    assert levels == start
    assert final.seconds > budget  # control: the ratio alone does not meet a latency

    slow_small = machine(choices, 1.3, clock=1 / 1.3)  # the predicted seconds are right, the speedups are not
    start, levels, final = fit(choices, speedup, slow_small, absolute=True)
    assert levels == start
    assert final.seconds <= budget
    assert final.speedup < speedup  # control: the seconds alone do not meet a speedup
    start, levels, final = fit(choices, speedup, slow_small)
    assert final.speedup >= speedup
    assert levels != start


@pytest.mark.parametrize("absolute", [True, False])
def test_a_table_of_a_faster_machine_is_corrected_for_latencies_only(
    absolute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock counts multiplications, so the seconds measured are exactly 1.3 times those of the table."""
    count_products(monkeypatch)
    setting = Setting(threads=1, clock="cpu", lengths=(10,))
    here = latency_table(MODEL, setting, max_seconds=1e-3)
    curves = {
        kind: LatencyCurve(curve.sizes, tuple(seconds / 1.3 for seconds in curve.seconds))
        for kind, curve in here.curves.items()
    }
    faster = LatencyTable(here.environment, here.fixed / 1.3, curves)
    plain = choices_for(uniform=False)
    choices = Choices(plain.levels, plain._priors, faster)

    def measure_small(small: PreTrainedModel) -> Measured:
        return measure(MODEL, small, setting, max_seconds=1e-3)

    start, levels, final = fit(choices, 2, measure_small, absolute=absolute)
    assert final.seconds == pytest.approx(1.3 * predicted(choices, levels), rel=1e-6)
    assert (final.seconds <= choices.dense_seconds / 2) == absolute
    assert (levels == start) != absolute
    assert final.speedup >= 2


def told_reasons(measured: list[Measured], *, uniform: bool = False, absolute: bool = False) -> list[str]:
    """Fit to 2x with these measurements, one after the other; return what is said between them."""
    choices = choices_for(uniform)
    budgets = {SECONDS: choices.dense_seconds / 2}
    start = choices.solve("one", budgets)
    events: list[str] = []

    def measure_levels(levels: Levels) -> Measured:
        events.append("measured")
        return measured[min(events.count("measured"), len(measured)) - 1]

    fit_levels(choices, start, "one", budgets, measure_levels, absolute=absolute, say=events.append)
    assert events[0] == events[-1] == "measured"  # nothing is said about a measurement that does not follow
    reasons = [event for event in events if event != "measured"]
    assert len(reasons) == events.count("measured") - 1  # one line for each measurement after the first
    return reasons


def at(speedup: float, low: float, high: float) -> Measured:
    seconds = choices_for(uniform=False).dense_seconds / speedup
    return Measured(speedup, low, high, seconds, speedup * seconds)


def test_a_second_measurement_of_a_model_that_met_the_target_is_explained() -> None:
    """A noisy measurement above the target is pooled with the table, and is then not certain enough."""
    (first, *_) = told_reasons([at(2.02, 1.70, 2.40)])
    assert first.startswith("fit: measuring the same model again: the measurement and the latency table ")
    assert "together give 2.0" in first
    assert first.endswith("at 95 %, which is not certain enough for 2x")
    low, high = (float(end) for end in first[first.index("[") + 1 : first.index("]")].split(", "))
    assert low < 2 < high


def test_a_correction_says_which_speedup_was_expected() -> None:
    assert told_reasons([at(2, 1.995, 2.005)]) == []  # control: nothing to say
    (slow, *_) = told_reasons([at(1.7, 1.69, 1.71), at(2, 1.995, 2.005)])
    assert slow.startswith("fit: measuring a smaller model: the measurement and the latency table together ")
    assert slow.endswith("at 95 %, and 2x is wanted")
    (fast, *_) = told_reasons([at(2.4, 2.39, 2.41), at(2, 1.995, 2.005)])
    assert fast.startswith("fit: measuring a larger model")
    reasons = told_reasons([at(1.7, 1.69, 1.71)])
    assert all("2 measurements and the latency table" in reason for reason in reasons[1:])


def test_a_correction_within_the_interval_says_that_the_miss_is_not_small() -> None:
    (reason, *_) = told_reasons([at(1.95, 1.88, 2.02), at(2, 1.995, 2.005)])
    low, high = (float(end) for end in reason[reason.index("[") + 1 : reason.index("]")].split(", "))
    assert low < 2 < high
    assert reason.startswith("fit: measuring a smaller model")
    assert reason.endswith("at 95 %, more than 1 % off the 2x that is wanted")


def test_a_latency_target_is_explained_in_milliseconds() -> None:
    (reason, *_) = told_reasons([at(1.7, 1.69, 1.71), at(2, 1.995, 2.005)], absolute=True)
    wanted = 1e3 * choices_for(uniform=False).dense_seconds / 2
    assert reason.endswith(f"ms] at 95 %, and {wanted:.4g} ms is wanted")


def test_uniform_sizes_are_explained_by_the_last_measurement() -> None:
    (slow, *_) = told_reasons([at(1.7, 1.69, 1.71), at(2, 1.995, 2.005)], uniform=True)
    assert slow == "fit: measuring a smaller model: 2x is wanted"
    (fast, *_) = told_reasons([at(2.4, 2.39, 2.41), at(2, 1.995, 2.005)], uniform=True)
    assert fast == "fit: measuring a larger model: 2x is wanted"


def test_on_a_busy_machine_the_latency_table_has_more_weight() -> None:
    """A model that is right by the table, and too slow on a busy machine, is pruned only a little more."""
    choices = choices_for(uniform=False)
    start = choices.solve("one", {"seconds": choices.dense_seconds / 2})

    def seconds_after(doubt: float) -> float:
        wide = Measured(1.8, 1.79 / (1 + doubt), 1.81 * (1 + doubt), choices.dense_seconds / 1.8, 1.0)
        measured = replace(wide, doubt=doubt)
        budgets = {"seconds": choices.dense_seconds / 2}
        fitted = fit_levels(choices, start, "one", budgets, lambda _: measured)
        return choices.seconds(fitted.levels)

    assert seconds_after(0.0) < seconds_after(0.2) <= choices.dense_seconds / 2

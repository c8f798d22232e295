"""`fit_budget` with noisy measurements: it pools them, and corrects only what is not noise."""

import itertools
import math

import numpy as np
import pytest
from spdy_problems import latency_problem
from spdy_search import Measurement, fit_budget, solve

Z99 = 2.576


class Machine:
    """A simulated machine, whose true totals differ from the table by a common factor.

    `unseen` is an error of each measurement that its interval does not tell.
    """

    def __init__(self, problem, factor, noise, seed=0, unseen=0.0):
        self.problem, self.factor, self.noise, self.unseen = problem, factor, noise, unseen
        self.rng = np.random.default_rng(seed)
        self.calls = 0

    def true(self, levels):
        return self.factor * self.problem.cost(levels)

    def measure(self, levels):
        self.calls += 1
        error = self.rng.normal(0, self.noise) + self.rng.normal(0, self.unseen)
        value = self.true(levels) * math.exp(error)
        half = Z99 * self.noise * value
        return Measurement(value, value - half, value + half)


def with_interval(ratio, half):
    """A measurement of `ratio` times the predicted total, known to within ±half."""
    return lambda problem: lambda x: tuple(problem.cost(x) * (ratio + d) for d in (0.0, -half, half))


@pytest.mark.parametrize("ratio", [1.005, 0.99])
def test_a_small_miss_within_its_interval_is_not_corrected(ratio):
    problem = latency_problem(16, 2, seed=1)
    start = solve(problem)
    measure = with_interval(ratio, 0.01)(problem)
    fit = fit_budget(problem, start, measure, problem.budget, final=False)
    assert np.array_equal(fit.levels, start)
    assert len(fit.rounds) == 1
    assert fit.measured is None
    exact = fit_budget(problem, start, lambda x: measure(x)[0], problem.budget)
    assert not np.array_equal(exact.levels, start)  # control: without an interval, it is


@pytest.mark.parametrize("ratio", [1.08, 0.92])
def test_a_large_miss_is_corrected(ratio):
    problem = latency_problem(16, 2, seed=1)
    fit = fit_budget(problem, solve(problem), with_interval(ratio, 0.01)(problem), problem.budget)
    assert ratio * fit.cost == pytest.approx(problem.budget, rel=0.015)
    assert abs(fit.expected - problem.budget) < 0.015 * problem.budget
    assert 0 < fit.deviation < 0.03 * problem.budget


def test_one_outlier_among_measurements_does_not_decide():
    problem = latency_problem(16, 2, seed=1)
    start = solve(problem)
    answers = iter([1.06, 1.0, 1.0])

    def measure(levels):
        value = next(answers) * problem.cost(levels)
        return value, 0.97 * value, 1.03 * value

    fit = fit_budget(problem, start, measure, problem.budget, final=False)
    assert len(fit.rounds) > 1
    assert problem.cost(fit.levels) > 0.97 * problem.budget
    last_only = fit_budget(problem, start, lambda x: 1.06 * problem.cost(x), problem.budget, rounds=1)
    assert problem.cost(last_only.levels) < 0.955 * problem.budget  # control


def test_wide_intervals_are_measured_again():
    problem = latency_problem(16, 2, seed=1)
    machine = Machine(problem, 1.0, noise=0.03)
    fit = fit_budget(problem, solve(problem), machine.measure, problem.budget, final=False)
    assert len(fit.rounds) == machine.calls == 3
    precise = Machine(problem, 1.0, noise=0.002)
    assert len(fit_budget(problem, solve(problem), precise.measure, problem.budget).rounds) == 1


def slowed(problem, factor, shared):
    """Measurements of a machine that makes everything take `factor` times as long as on a quiet day."""
    return lambda x: Measurement(
        *(problem.cost(x) * factor * end for end in (1, 0.995, 1.005)), shared=shared
    )


def test_a_shared_error_is_not_measured_again():
    problem = latency_problem(16, 2, seed=1)
    fit = fit_budget(problem, solve(problem), slowed(problem, 1.0, 0.05), problem.budget, final=False)
    assert len(fit.rounds) == 1
    assert fit.deviation > 0.03 * problem.budget
    # Control: an error of its own of the same size is.
    wide = with_interval(1.0, Z99 * 0.05)(problem)
    assert len(fit_budget(problem, solve(problem), wide, problem.budget, final=False).rounds) == 3


def test_against_a_shared_error_the_table_has_its_say():
    problem = latency_problem(16, 2, seed=1)
    found = {
        shared: fit_budget(problem, solve(problem), slowed(problem, 1.1, shared), problem.budget, final=False)
        for shared in (0.0, 0.05)
    }
    # The machine slows everything down by 10 %, which is as likely as that the table is wrong.
    assert 0.93 * problem.budget < found[0.05].cost < 0.97 * problem.budget
    assert found[0.0].cost < 0.93 * problem.budget  # control: without a shared error, the table is wrong
    assert sum(levels.cost < 0.93 * problem.budget for levels in found[0.05].rounds) == 0


@pytest.mark.parametrize(
    ("noise", "unseen", "share"), [(0.01, 0.0, 0.95), (0.01, 0.03, 0.75), (0.03, 0.0, 0.75)]
)
def test_true_totals_end_near_the_target_more_often_than_by_the_last_measurement(noise, unseen, share):
    pooled, last = [], []
    for seed in range(20):
        problem = latency_problem(12, 2, seed)
        start = solve(problem)
        factor = 1 + (-0.06, 0.0, 0.06)[seed % 3]
        machine = Machine(problem, factor, noise, seed, unseen)
        fit = fit_budget(problem, start, machine.measure, problem.budget, final=False)
        pooled.append(machine.true(fit.levels) / problem.budget - 1)
        plain = Machine(problem, factor, noise, seed, unseen)
        fit = fit_budget(problem, start, lambda x, m=plain: m.measure(x).value, problem.budget, final=False)
        last.append(plain.true(fit.levels) / problem.budget - 1)
    assert np.mean(np.abs(pooled) <= 0.03) >= share
    assert np.mean(np.square(pooled)) < 1.05 * np.mean(np.square(last))


def test_the_best_is_returned_rather_than_the_last():
    problem = latency_problem(16, 2, seed=1)
    # The first measurement is 10 % too high, so that the correction goes much too far.
    answers = iter([1.1, 1.0, 1.0])
    fit = fit_budget(
        problem, solve(problem), lambda x: next(answers) * problem.cost(x), problem.budget, final=False
    )
    totals = [step.measured for step in fit.rounds]
    assert totals[1] < 0.95 * problem.budget
    assert problem.prior(fit.levels) <= min(problem.prior(step.levels) for step in fit.rounds[1:])


def test_the_final_measurement_is_optional():
    problem = latency_problem(8, 2, seed=0)
    machine = Machine(problem, 1.0, 0.0)
    fit = fit_budget(problem, solve(problem), machine.true, problem.budget, final=False)
    assert fit.measured is None
    assert fit.expected == problem.cost(fit.levels)
    assert "measured" not in repr(fit)


def test_a_known_fixed_part_makes_a_wrong_scale_converge_in_one_correction():
    problem = latency_problem(16, 2, seed=1)
    target = 0.9 * problem.budget + 5.0  # not what the budget was made from
    calls = []

    def measure(levels):
        calls.append(levels)
        return 1.3 * (problem.cost(levels) + 5.0)

    fit = fit_budget(problem, solve(problem), measure, target, fixed=5.0, rounds=1)
    assert fit.measured <= target * (1 + 1e-9)
    assert fit.measured > 0.98 * target


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ((1.0, 2.0, 0.5), r"the interval of a measurement must not be empty; got \[2, 0\.5\]"),
        ((1.0, 0.5), r"is \(value, low, high\); got 2 numbers"),
        ((1.0, math.nan, 2.0), "a measurement must be finite"),
        (Measurement(1.0, 0.5, 2.0, shared=-0.1), "shared error of a measurement must be at least 0"),
        (Measurement(1.0, 0.5, 2.0, 1.0), "confidence of a measurement must be between 0 and 1"),
        ("fast", "measure must return one number; got str"),
        (10**400, "measure must return one number"),
    ],
)
def test_invalid_measurements_are_named_in_the_error(measured, message):
    problem = latency_problem(4, 2, seed=0)
    with pytest.raises(ValueError, match=message):
        fit_budget(problem, solve(problem), lambda x: measured, problem.budget)


def test_the_confidence_of_an_interval_counts():
    assert Measurement(1.0, 0.9, 1.1, 0.5).error > 2 * Measurement(1.0, 0.9, 1.1, 0.99).error
    assert Measurement(1.0, 1.0, 1.0).error == 0


@pytest.mark.parametrize(
    ("ratio", "half", "following"),
    [(1.0, 0.005, "stop"), (1.08, 0.005, "cheaper"), (0.92, 0.005, "better"), (1.0, 0.2, "same")],
)
def test_each_round_says_what_follows_from_it_and_from_which_expectation(ratio, half, following):
    problem = latency_problem(16, 2, seed=1)
    told, calls = [], []

    def measure(levels):
        assert len(told) == len(calls)  # a round is told before the next one is measured
        calls.append(levels)
        return with_interval(ratio, half)(problem)(levels)

    fit = fit_budget(problem, solve(problem), measure, problem.budget, final=False, progress=told.append)
    assert all(step is known for step, known in zip(told, fit.rounds, strict=True))
    assert told[0].following == following
    assert fit.rounds[-1].following == "stop" or len(fit.rounds) == 3
    for step, after in itertools.pairwise(fit.rounds):
        change = np.sign(problem.cost(after.levels) - problem.cost(step.levels))
        assert change == {"cheaper": -1, "better": 1, "same": 0}[step.following]
    # The expectation lies between the problem's cost and the measured one, and nearer to the latter.
    first = fit.rounds[0]
    between = sorted((first.cost, first.measured))
    assert between[0] - 1e-9 <= first.expected <= between[1] + 1e-9
    assert 0 < first.deviation < 0.06 * problem.budget

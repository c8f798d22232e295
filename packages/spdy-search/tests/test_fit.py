"""`fit_budget`: levels corrected by measurements."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spdy_problems import latency_problem, two_budgets
from spdy_search import InfeasibleBudget, Problem, fit_budget, search, solve


@given(st.integers(0, 10**6), st.floats(0.9, 1.12), st.floats(0.0, 3.0))
def test_three_rounds_reach_the_target_although_the_costs_are_wrong(seed, factor, fixed):
    problem = latency_problem(16, 2.5, seed)
    measured = []

    def measure(levels):
        measured.append(tuple(levels.tolist()))
        return factor * problem.cost(levels) + fixed

    target = problem.budget + fixed
    fit = fit_budget(problem, solve(problem), measure, target)
    assert fit.measured <= target * (1 + 1e-3)
    assert fit.measured >= target * 0.97
    assert fit.cost == problem.cost(fit.levels)
    assert 1 <= len(fit.rounds) <= 3
    assert len(measured) == len(fit.rounds) + 1  # the final measurement is an extra one
    assert measured[-1] == tuple(fit.levels)


def test_the_final_measurement_is_a_new_one():
    problem = latency_problem(8, 2, seed=0)
    answers = iter([problem.budget, 123.0])
    fit = fit_budget(problem, solve(problem), lambda levels: next(answers), problem.budget)
    assert [step.measured for step in fit.rounds] == [problem.budget]
    assert fit.measured == 123.0


def test_over_target_modules_only_become_cheaper_and_under_it_only_better():
    problem = latency_problem(16, 2, seed=1)
    levels = search(problem, lambda levels: float(levels[3]), evaluations=20).levels
    costs, priors, target = problem.costs["cost"], problem.priors, problem.cost(levels)
    over = fit_budget(problem, levels, lambda x: 1.05 * problem.cost(x), target, rounds=1)
    under = fit_budget(problem, levels, lambda x: 0.9 * problem.cost(x), target, rounds=1)
    assert not np.array_equal(over.levels, levels)
    assert not np.array_equal(under.levels, levels)
    for module, level in enumerate(levels):
        assert costs[module][over.levels[module]] <= costs[module][level]
        assert priors[module][under.levels[module]] <= priors[module][level]


def test_the_repair_adds_the_least_prior():
    problem = Problem([[4, 3, 1], [4, 3, 1], [4, 3, 1]], [[0, 1, 9], [0, 2, 4], [0, 3, 5]], 12)
    fit = fit_budget(problem, [0, 0, 0], lambda x: problem.cost(x) + 3, 12, rounds=1)
    assert fit.rounds[0].measured == 15
    assert fit.levels.tolist() == [0, 2, 0]  # prior 4, against 6 if every module moved to level 1


def test_control_without_correction_the_target_is_missed():
    problem = latency_problem(16, 2, seed=1)
    assert 1.1 * problem.cost(solve(problem)) > problem.budget
    fit = fit_budget(problem, solve(problem), lambda x: 1.1 * problem.cost(x), problem.budget)
    assert fit.measured <= problem.budget * 1.001


def test_a_search_result_is_accepted_and_other_budgets_are_kept():
    problem = two_budgets()
    result = search(problem, lambda levels: 1.0, method="prior")
    target = problem.budgets["seconds"]
    fit = fit_budget(problem, result, lambda x: 0.9 * problem.cost(x)["seconds"], target, cost="seconds")
    assert problem.cost(fit.levels)["bytes"] <= problem.budgets["bytes"]
    assert fit.cost == problem.cost(fit.levels)["seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1; got 0"),
        ({"cost": "bytes"}, "cost must name the measured cost, one of cost; got 'bytes'"),
        ({"measure": lambda levels: math.nan}, "a measurement must be a finite number; got nan"),
        ({"measure": lambda levels: None}, "measure must return one number; got NoneType"),
        ({"target": math.nan}, "target must be a finite number; got nan"),
        ({"tolerance": -0.1}, "tolerance must be at least 0 and below 1; got -0.1"),
        ({"result": [0]}, "each of 2 modules"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(arguments, message):
    given = {"result": [0, 0], "measure": lambda levels: 4.0, "target": 4.0, **arguments}
    with pytest.raises(ValueError, match=message):
        fit_budget(Problem([[2, 1]] * 2, [[0, 1]] * 2, 4), **given)


def test_a_target_out_of_reach_names_the_cheapest_measurement():
    with pytest.raises(
        InfeasibleBudget, match=r"target 3 cannot be reached: the cheapest levels, which cost 2, .* at 9$"
    ) as caught:
        fit_budget(Problem([[2, 1]] * 2, [[0, 1]] * 2, 4), [0, 0], lambda levels: 9.0, 3.0)
    assert (caught.value.smallest, caught.value.budget) == (9.0, 3.0)


def test_the_cheapest_levels_are_tried_when_the_target_only_seems_out_of_reach():
    # The first round leaves a budget of 10 + 10 - 20 = 0. The cheapest levels cost 2 but measure only 4.
    problem = Problem([[5, 3, 1]] * 2, [[0, 1, 2]] * 2, 10)
    fit = fit_budget(problem, [0, 0], lambda levels: 2 * problem.cost(levels), 10)
    assert fit.measured <= 10
    two = Problem({"a": [[5, 3, 1]] * 2, "b": [[0, 0, 1]] * 2}, [[0, 1, 2]] * 2, {"a": 10, "b": 1})
    fit = fit_budget(two, [0, 0], lambda levels: 2 * two.cost(levels)["a"], 10, cost="a", rounds=1)
    assert sorted(fit.levels.tolist()) == [1, 2]  # the cheapest levels within the other budget
    assert fit.measured == 8


def test_a_measurement_above_the_target_by_a_rounding_error_is_corrected():
    problem = Problem([[1e9, 1.0]], [[0, 1]], 1e9)
    assert fit_budget(
        problem, [0], lambda levels: problem.cost(levels) / 1e9 + 1e-9, 1.0
    ).levels.tolist() == [1]


@pytest.mark.parametrize("factor", [0.85, 1.15])
def test_a_noisy_measurement_ends_near_the_target(factor):
    problem = latency_problem(16, 2.5, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(5):
        fit = fit_budget(
            problem,
            solve(problem),
            lambda x: factor * problem.cost(x) * (1 + 0.005 * rng.uniform(-1, 1)),
            problem.budget,
        )
        assert factor * problem.cost(fit.levels) == pytest.approx(problem.budget, rel=0.02)
    assert abs(factor - 1) > 0.02  # control: without correction the target is missed

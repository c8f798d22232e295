"""`solve_bounded`: exact where that is quick, otherwise a solution with a valid proof of how good it is."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp
from spdy_problems import brute_force, highs_optimum, latency_problem, small_problems, two_budgets
from spdy_search import InfeasibleBudget, Problem, Solution, solve, solve_bounded


def random_problem(modules, levels, seed, kinds=1, prior_of_cost=None):
    """Random sorted rows; the budget is between a fifth and four fifths of what there is to spend."""
    rng = np.random.default_rng(seed)
    costs = [[np.sort(rng.random(levels))[::-1] for _ in range(modules)] for _ in range(kinds)]
    priors = [np.sort(rng.random(levels)) for _ in range(modules)]
    if prior_of_cost is not None:
        priors = [prior_of_cost(row, rng) for row in costs[0]]
    share = rng.uniform(0.2, 0.8)
    low, high = ([sum(pick(row) for row in rows) for rows in costs] for pick in (np.min, np.max))
    budgets = [a + share * (b - a) for a, b in zip(low, high, strict=True)]
    if kinds == 1:
        return Problem(costs[0], priors, budgets[0])
    names = "abc"[:kinds]
    return Problem(dict(zip(names, costs, strict=True)), priors, dict(zip(names, budgets, strict=True)))


@pytest.mark.parametrize("kinds", [1, 2, 3])
@settings(max_examples=300)
@given(data=st.data(), effort=st.sampled_from([1, 30, 1000, 10**6]))
def test_bound_and_exactness_hold_against_brute_force_at_any_effort(kinds, data, effort):
    costs, priors, budgets, weights = data.draw(small_problems(kinds))
    names = "abc"[:kinds]
    problem = (
        Problem(costs[0], priors, budgets[0])
        if kinds == 1
        else Problem(dict(zip(names, costs, strict=True)), priors, dict(zip(names, budgets, strict=True)))
    )
    best = brute_force(costs, priors, budgets, weights)
    if best is None:
        with pytest.raises(InfeasibleBudget):
            solve_bounded(problem, weights, effort=effort)
        return
    found = solve_bounded(problem, weights, effort=effort)
    scale = max(abs(w * value) for w, row in zip(weights, priors, strict=True) for value in row)
    assert problem.fits(found.levels)
    assert found.prior == problem.prior(found.levels, weights)
    assert found.bound <= best + 1e-9 * scale
    assert found.bound <= found.prior + 1e-9 * scale
    if found.exact:
        assert found.prior <= best + 1e-9 * scale
        assert found.gap == 0


def test_the_only_assignment_may_have_more_excess_than_any_single_level():
    """Excesses add up over modules: all levels within a limit are not all assignments within it."""
    costs = {
        "a": [[0.1, 0.0], [0.0, -15.0], [-65.0], [0.3, 0.0]],
        "b": [[0.0, 0.0], [0.0, 0.1], [0.0], [0.0, 0.0]],
    }
    priors = [[0.0, 0.2], [0.0, 0.0], [0.0], [0.0, 1.0]]
    problem = Problem(costs, priors, {"a": -64.90000000000002, "b": 0.0})
    found = solve_bounded(problem, [1.0, 0.0, 0.0, 0.5])
    assert found.levels.tolist() == [1, 0, 0, 1]
    assert found.exact


@pytest.mark.parametrize("seed", range(4))
def test_random_problems_are_solved_exactly(seed):
    problem = random_problem(48, 30, seed)
    found = solve_bounded(problem)
    assert found.exact
    assert found.prior == pytest.approx(highs_optimum(problem, np.ones(48)), rel=1e-9)


@pytest.mark.parametrize(("modules", "levels", "count"), [(96, 45, 60), (300, 100, 4)])
def test_the_default_effort_is_enough_for_large_random_problems(modules, levels, count):
    # A core that starts from the gap of the first solution needs thousands of times the states.
    assert all(solve_bounded(random_problem(modules, levels, seed)).exact for seed in range(count))


@pytest.mark.parametrize("seed", range(3))
def test_two_budgets_are_solved_exactly(seed):
    problem = random_problem(48, 20, seed, kinds=2)
    found = solve_bounded(problem)
    assert found.exact
    one = [Problem(problem.costs[name], problem.priors, problem.budgets[name]) for name in "ab"]
    assert found.prior >= max(solve_bounded(single).prior for single in one)
    assert found.prior == pytest.approx(two_budget_optimum(problem), rel=1e-8)


def two_budget_optimum(problem):
    """The optimum by HiGHS alone."""
    objective = np.concatenate(problem.priors)
    module = np.repeat(np.arange(problem.modules), problem.level_counts)
    rows = np.stack([np.concatenate(problem.costs[name]) / problem.budgets[name] for name in problem.names])
    found = milp(
        objective * 1e5,
        integrality=np.ones(len(objective)),
        bounds=(0, 1),
        constraints=[
            LinearConstraint((module == np.arange(problem.modules)[:, None]).astype(float), 1, 1),
            LinearConstraint(rows * 1e4, -np.inf, 1e4),
        ],
        options={"mip_rel_gap": 0.0},
    )
    return float(objective @ np.rint(found.x))


HARD = {
    "proportional": lambda cost, rng: cost[0] - cost,
    "nearly proportional": lambda cost, rng: np.maximum.accumulate(cost[0] - cost + 1e-3 * rng.random(45)),
    "with a step": lambda cost, rng: cost[0] - cost + 0.1 * (np.arange(45) > 0),
}


@pytest.mark.parametrize("kind", HARD)
def test_hard_problems_get_a_small_proven_gap(kind):
    solutions = [solve_bounded(random_problem(96, 45, seed, prior_of_cost=HARD[kind])) for seed in range(4)]
    assert all(found.gap <= 5e-3 for found in solutions)
    assert all(found.exact or found.bound < found.prior for found in solutions)
    if kind == "proportional":
        assert all(0 < found.gap < 1e-7 for found in solutions)


def test_more_effort_proves_more():
    problem = random_problem(96, 45, 3)
    few, many = (solve_bounded(problem, effort=effort) for effort in (50, 10**6))
    assert not few.exact  # control: the effort is a limit
    assert many.exact
    assert few.bound < many.bound == many.prior <= few.prior
    assert 0 < few.gap < 0.05


def test_an_incomplete_search_of_two_budgets_is_bounded_too():
    problem = random_problem(48, 20, 0, kinds=2)
    few, many = (solve_bounded(problem, effort=effort) for effort in (1, 10**6))
    assert many.exact
    assert few.bound <= many.prior <= few.prior
    assert few.gap < 0.05


def test_the_levels_are_those_of_solve():
    for problem in (latency_problem(24, 3, seed=0), two_budgets()):
        weights = np.random.default_rng(0).random(problem.modules)
        assert np.array_equal(solve_bounded(problem, weights).levels, solve(problem, weights))


def test_weights_of_zero_and_priors_of_zero_have_no_gap():
    problem = latency_problem(6, 2, seed=0)
    assert solve_bounded(problem, np.zeros(6)).gap == 0
    assert Solution(np.array([0]), 0.0, -1.0, exact=False).gap == math.inf


@pytest.mark.parametrize("effort", [0, -5])
def test_the_effort_must_be_positive(effort):
    with pytest.raises(ValueError, match="effort must be at least 1"):
        solve_bounded(latency_problem(6, 2, seed=0), effort=effort)

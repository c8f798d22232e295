"""`solve` and `solve_batch`: optimal or nearly so, and always within budget."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import milp
from spdy_problems import brute_force, highs_optimum, latency_problem, random_rows, small_problems
from spdy_search import InfeasibleBudget, Problem, solve, solve_batch
from spdy_search._relax import EDGE, relax


@settings(max_examples=500)
@given(small_problems())
def test_solve_equals_brute_force(rows):
    (costs,), priors, (budget,), weights = rows
    problem = Problem(costs, priors, budget)
    best = brute_force([costs], priors, [budget], weights)
    if best is None:
        with pytest.raises(InfeasibleBudget):
            solve(problem, weights)
    else:
        levels = solve(problem, weights)
        scale = max(abs(w * value) for w, row in zip(weights, priors, strict=True) for value in row)
        assert problem.fits(levels)
        assert problem.prior(levels, weights) <= best + 1e-9 * scale


@settings(max_examples=100)
@given(small_problems(kinds=2))
def test_solve_with_several_budgets_equals_brute_force(rows):
    (first, second), priors, (one, two), weights = rows
    problem = Problem({"one": first, "two": second}, priors, {"one": one, "two": two})
    best = brute_force([first, second], priors, [one, two], weights)
    if best is None:
        with pytest.raises(InfeasibleBudget):
            solve(problem, weights)
    else:
        scale = max(abs(w * value) for w, row in zip(weights, priors, strict=True) for value in row)
        levels = solve(problem, weights)
        assert problem.fits(levels)
        assert problem.prior(levels, weights) <= best + 1e-9 * scale
        assert all(problem.fits(levels) for levels in solve_batch(problem, [weights, weights]))


def test_ten_thousand_solutions_are_within_budget():
    rng = np.random.default_rng(5)
    feasible = exact = 0
    for _ in range(10_000):
        costs, priors, budget = random_rows(rng)
        problem = Problem(costs, priors, budget)
        reachable = math.fsum(map(min, costs)) <= budget
        weights = rng.random((2, len(costs)))
        try:
            chosen = [solve(problem, weights[0]), *solve_batch(problem, weights)]
        except InfeasibleBudget:
            assert not reachable
            continue
        assert reachable
        feasible += 1
        for levels in chosen:
            total = math.fsum(row[level] for row, level in zip(costs, levels, strict=True))
            assert total <= budget
            exact += total == budget
    assert feasible > 8000
    assert exact > 4000  # control: many solutions meet the budget exactly


@pytest.mark.parametrize("modules", [24, 48])
@pytest.mark.parametrize("speedup", [2, 8])
def test_solve_equals_highs_on_latency_tables(modules, speedup):
    problem = latency_problem(modules, speedup, seed=modules + speedup)
    for weights in np.random.default_rng(speedup).random((3, modules)):
        best = highs_optimum(problem, weights)
        assert problem.prior(solve(problem, weights), weights) == pytest.approx(best, rel=1e-9)


def test_several_budgets_on_a_latency_table():
    table = latency_problem(12, 2, seed=1)
    seconds = table.costs["cost"]
    memory = [row**2 for row in seconds]
    problem = Problem(
        {"s": seconds, "b": memory}, table.priors, {"s": table.budget, "b": 0.25 * sum(m[0] for m in memory)}
    )
    levels = solve(problem)
    assert problem.fits(levels)
    assert not problem.fits(solve(table))  # control: the second budget matters
    assert problem.prior(levels) >= problem.prior(solve(table))
    weights = np.random.default_rng(0).random((8, 12))
    for weight, near in zip(weights, solve_batch(problem, weights), strict=True):
        assert problem.fits(near)
        assert problem.prior(near, weight) <= 1.05 * problem.prior(solve(problem, weight), weight)


def test_jointly_infeasible_budgets_are_named_in_the_error():
    problem = Problem({"a": [[0, 1]], "b": [[1, 0]]}, [[0, 0]], {"a": 0, "b": 0})
    for attempt in (lambda: solve(problem), lambda: solve_batch(problem, np.ones((2, 1)))):
        with pytest.raises(InfeasibleBudget, match="no assignment is within all budgets at once"):
            attempt()


@pytest.mark.parametrize(("modules", "speedup"), [(24, 2), (24, 8), (64, 4), (160, 2)])
def test_batch_is_near_the_optimum(modules, speedup):
    problem = latency_problem(modules, speedup, seed=speedup)
    weights = np.random.default_rng(modules).random((24, modules))
    gaps = [
        problem.prior(near, weight) / problem.prior(solve(problem, weight), weight) - 1
        for weight, near in zip(weights, solve_batch(problem, weights), strict=True)
    ]
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 1e-3
    assert max(gaps) < 1e-2


def test_only_the_ratios_of_weights_matter():
    problem = latency_problem(24, 3, seed=0)
    weights = np.random.default_rng(0).random(24)
    assert np.array_equal(solve(problem, weights), solve(problem, 1e-200 * weights))
    assert np.array_equal(solve_batch(problem, weights[None]), solve_batch(problem, 1e200 * weights[None]))


@pytest.mark.parametrize("width", [1e12, 1e29])
def test_wide_priors_with_zero_weight_do_not_hide_the_others(width):
    costs, priors = [[1, 0], [3, 1], [3, 2]], [[0, width], [0, 1], [0, 2]]
    for problem in (
        Problem(costs, priors, 5),
        Problem({"a": costs, "b": costs}, priors, {"a": 5, "b": 5}),
    ):
        for levels in (solve(problem, [0, 1, 1]), *solve_batch(problem, [[0, 1, 1]])):
            assert levels[1:].tolist() == [1, 0]


def test_large_weights_on_equal_priors_do_not_hide_the_others():
    rows, priors = [[1, 1], [3, 1]], [[7, 7], [0, 1]]
    problem = Problem({"a": rows, "b": rows}, priors, {"a": 4, "b": 4})
    assert solve(problem, [1, 1e-200]).tolist() == [0, 0]


def test_rounding_of_many_equal_steps_does_not_exceed_the_limit():
    # A float32 sum of 10,000 steps is off by 1e-5, so that 3000 of them would seem to fit.
    problem = Problem([[1.0, 0.0]] * 10_000, [[0.0, 1.0]] * 10_000, 2999.99)
    spent = relax(problem.ladder, np.ones((1, 10_000)), limit=1 - EDGE).spent
    assert spent[0] == pytest.approx(2999 / 2999.99, rel=1e-12)


@pytest.mark.parametrize("budget", [12.0, 1e9])
def test_an_ample_budget_gives_the_smallest_priors(budget):
    problem = Problem([[4, 1], [8, 2, 1]], [[0, 1], [0, 1, 2]], budget)
    assert solve(problem).tolist() == [0, 0]
    assert solve_batch(problem, np.ones((2, 2))).tolist() == [[0, 0]] * 2


def test_costs_finer_than_the_grid_stay_within_budget():
    costs = [[1.0, 2.0**-52, 2.0**-200], [1.0, 2.0**-53, 3 * 2.0**-300]]
    for budget in (1.0, 2.0**-52, 2.0**-200, math.fsum([2.0**-52, 2.0**-53])):
        problem = Problem(costs, [[0, 1, 3], [0, 1, 3]], budget)
        assert problem.fits(solve(problem))
        expected = brute_force([costs], [[0, 1, 3], [0, 1, 3]], [budget], [1, 1])
        assert problem.prior(solve(problem)) == expected


def test_a_sum_over_budget_by_less_than_a_grid_unit_is_rejected():
    # 1 + 2⁻⁵³ rounds to 1. Adding 2⁻¹⁰⁵, far below the unit of the grid, makes the sum round up.
    problem = Problem([[1.0, 0.0], [2.0**-53 + 2.0**-105, 0.0]], [[0, 5], [0, 1]], 1.0)
    assert not problem.fits([0, 0])
    assert solve(problem).tolist() == [0, 1]
    assert solve_batch(problem, np.ones((2, 2))).tolist() == [[0, 1]] * 2
    touching = Problem([[1.0, 0.0], [2.0**-53, 0.0]], [[0, 5], [0, 1]], 1.0)
    assert solve(touching).tolist() == [0, 0]


def test_priors_in_proportion_to_costs_fill_the_budget():
    # The bound prunes none of the 20¹⁰ assignments.
    rng = np.random.default_rng(0)
    costs = [np.sort(rng.random(20))[::-1] for _ in range(10)]
    problem = Problem(costs, [row[0] - row for row in costs], sum(row[0] for row in costs) / 2)
    unused = problem.budget - problem.cost(solve(problem))
    assert 0 <= unused < 1e-8


def test_an_empty_batch_returns_no_assignments():
    assert solve_batch(latency_problem(4, 2, seed=0), np.ones((0, 4))).shape == (0, 4)


# Controls: simpler approaches do make the errors that the solvers avoid.


def test_control_rounding_costs_to_buckets_breaks_the_budget():
    over = 0
    for seed in range(20):
        problem = latency_problem(24, 2, seed)
        buckets = 1000
        unit = problem.budget / buckets
        rounded = [np.rint(row / unit) for row in problem.costs["cost"]]
        levels = solve(Problem(rounded, problem.priors, buckets))
        over += not problem.fits(levels)
    assert over > 0


def test_control_adding_floats_in_order_misjudges_an_exact_budget():
    costs = [[0.1, 0.0]] * 10
    assert sum(row[0] for row in costs) != 1.0
    running = 0.0
    missed = False
    for budget in (0.3, 0.7, 1.0):
        problem = Problem(costs, [[0.0, 1.0]] * 10, budget)
        taken = round(10 * budget)
        running = sum([0.1] * taken)
        missed |= (running <= budget) != problem.fits([0] * taken + [1] * (10 - taken))
        assert (solve(problem) == 0).sum() == taken - (math.fsum([0.1] * taken) > budget)
    assert missed


def test_control_highs_alone_exceeds_the_budget():
    costs, budget = np.array([1.0, 1 + 1e-8]), 2.0
    found = milp(
        [0, -1, 0, -1],
        integrality=[1] * 4,
        bounds=(0, 1),
        constraints=[([[1, 1, 0, 0], [0, 0, 1, 1]], 1, 1), ([*costs, *costs], -np.inf, budget)],
    )
    assert math.fsum([costs[1] * round(found.x[1]), costs[1] * round(found.x[3])]) > budget
    rows = [costs.tolist()] * 2
    problem = Problem({"a": rows, "b": rows}, [[1, 0]] * 2, {"a": budget, "b": budget})
    assert solve(problem).tolist() == [0, 0]


def test_import_needs_no_torch():
    code = "import sys, spdy_search; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

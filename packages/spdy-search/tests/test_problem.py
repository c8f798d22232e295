"""`Problem`: its checks, sums and useful levels."""

import doctest
import importlib.metadata
import math
import pickle

import numpy as np
import pytest
import spdy_search
from spdy_search import InfeasibleBudget, Problem, _problem, _solve, solve, solve_batch

COSTS = [[3.0, 1.0], [5.0, 4.0, 1.0]]
PRIORS = [[0.0, 2.0], [0.0, 1.0, 6.0]]


@pytest.mark.parametrize(
    ("costs", "priors", "budget", "message"),
    [
        ([], [], 1, "priors have no modules"),
        ([[1]], 1, 1, "priors must be one row of numbers per module; got 1"),
        ([[1], []], [[1], []], 1, "priors: module 1 must be a row with at least one level"),
        ([[1, math.nan]], [[1, 1]], 1, "module 0, level 1 is nan"),
        ([[1, 1]], [[1, math.inf]], 1, "module 0, level 1 is inf"),
        ([[1, "a"]], [[1, 1]], 1, "not a row of numbers"),
        ([[1, 2], [1]], [[1, 2], [1, 2]], 1, "module 1 has 1 costs 'cost' but 2 priors"),
        ([[1, 2]], [[1, 2], [1, 2]], 1, "have 1 rows, priors have 2"),
        ([[1, 2]], [[1, 2]], math.inf, "budget 'cost' must be finite"),
        ([[1, 2]], [[1, 2]], "lots", "budget 'cost' must be a number"),
        ([[1e308, 1], [1e308, 1]], [[1, 2], [1, 2]], 1, "more than a float can hold"),
        ({"a": [[1, 2]]}, [[1, 2]], {"b": 1}, "costs are ['a'], budgets are ['b']"),
        ({"a": [[1, 2]]}, [[1, 2]], 1, "both be plain or both be dictionaries"),
        ({}, [[1, 2]], {}, "every cost needs one budget"),
        ({1: [[1]], "a": [[1]]}, [[1]], {1: 1}, "costs are [1, 'a'], budgets are [1]"),
        ([[10**400, 1]], [[1, 1]], 1, "not a row of numbers that a float can hold"),
        ([[1, 1]], [[1, 1]], 10**400, "budget 'cost' must be a number that a float can hold"),
        ([np.full((3, 3), "a")], [[1]], 1, "not a row of numbers"),
        (np.ones((1, 2), dtype=complex), [[1, 1]], 1, "not a row of numbers"),
    ],
)
def test_invalid_input_is_named_in_the_error(costs, priors, budget, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        Problem(costs, priors, budget)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_costs_are_added_by_fsum_and_returned_in_the_form_they_were_given():
    plain = Problem(COSTS, PRIORS, 7)
    assert plain.cost([0, 1]) == 7.0
    assert plain.budget == 7.0
    assert plain.smallest_cost == 2.0
    named = Problem({"seconds": COSTS, "bytes": COSTS}, PRIORS, {"seconds": 7, "bytes": 8})
    assert named.cost([0, 1]) == {"seconds": 7.0, "bytes": 7.0}
    assert named.smallest_cost == {"seconds": 2.0, "bytes": 2.0}
    tenths = Problem([[0.1]] * 10, [[0.0]] * 10, 1.0)
    assert tenths.fits([0] * 10)  # sum() says 0.9999999999999999, fsum 1.0
    assert "10 modules" in repr(tenths)


def test_weights_multiply_the_priors_of_their_modules():
    assert Problem(COSTS, PRIORS, 7).prior([1, 2], weights=[0.5, 2.0]) == 13.0


@pytest.mark.parametrize(
    ("levels", "message"),
    [([0], "each of 2 modules"), ([0, 3], "module 1 has levels 0 to 2; got 3"), ([0.0, 1.0], "integers")],
)
def test_invalid_levels_are_named_in_the_error(levels, message):
    with pytest.raises(ValueError, match=message):
        Problem(COSTS, PRIORS, 7).fits(levels)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, math.nan], [[1.0, 1.0]]])
def test_invalid_weights_are_rejected(weights):
    with pytest.raises(ValueError, match="weights must be"):
        solve(Problem(COSTS, PRIORS, 7), weights)
    with pytest.raises(ValueError, match="weights must be"):
        solve_batch(Problem(COSTS, PRIORS, 7), np.ones(2))


def test_a_budget_out_of_reach_names_the_smallest_cost():
    problem = Problem(COSTS, PRIORS, 1.5)
    for attempt in (lambda: solve(problem), lambda: solve_batch(problem, np.ones((3, 2)))):
        with pytest.raises(
            InfeasibleBudget, match=r"budget 1\.5 cannot be reached: the smallest total is 2$"
        ) as caught:
            attempt()
        assert caught.value.smallest == 2.0
        assert caught.value.budget == 1.5


def test_dominated_levels_are_never_chosen():
    # Level 1 costs more than level 0 and is worse; level 2 equals level 3; level 4 never fits.
    problem = Problem([[2, 3, 1, 1, 9], [2, 2]], [[1, 2, 3, 3, 0], [5, 5]], 4)
    assert [levels.tolist() for levels in problem.useful] == [[0, 2], [0]]
    assert solve(problem).tolist() == [0, 0]


def test_infeasible_budget_can_be_pickled():
    error = pickle.loads(pickle.dumps(InfeasibleBudget("no", smallest=2.0, budget=1.0)))
    assert (str(error), error.smallest, error.budget) == ("no", 2.0, 1.0)


@pytest.mark.parametrize("module", [_problem, _solve])
def test_examples_in_docstrings_are_correct(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_rows_are_copied_and_frozen():
    row = np.array([3.0, 1.0])
    problem = Problem([row], [[0, 1]], 3)
    row[:] = 9
    assert problem.cost([0]) == 3.0
    with pytest.raises(ValueError, match="read-only"):
        problem.priors[0][0] = 1


def test_the_version_is_that_of_the_installed_package():
    assert spdy_search.__version__ == importlib.metadata.version("spdy-search")

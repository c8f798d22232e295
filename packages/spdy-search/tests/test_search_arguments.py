"""Invalid arguments of a search, and errors of the functions passed to it."""

import pytest
from spdy_problems import METHODS, latency_problem
from spdy_search import InfeasibleBudget, Problem, search


@pytest.mark.parametrize("bad", [None, "low", [1.0, 2.0]])
def test_a_loss_or_screen_must_return_one_number(bad):
    problem = latency_problem(6, 2, seed=3)
    with pytest.raises(ValueError, match=f"loss must return one number; got {type(bad).__name__}"):
        search(problem, lambda levels: bad)
    with pytest.raises(ValueError, match=f"screen must return one number; got {type(bad).__name__}"):
        search(problem, lambda levels: 1.0, screen=lambda levels, fraction: bad)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "best"}, "there is no method 'best'; choose one of direct"),
        ({"evaluations": 0}, "evaluations must be at least 1; got 0"),
        ({"patience": 0}, "patience must be at least 1; got 0"),
        ({"starts": [[0, 0]]}, "start 0 is over budget"),
        ({"starts": [[0]]}, "each of 2 modules"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        search(Problem([[2, 1]] * 2, [[0, 1]] * 2, 3), lambda levels: 1.0, **arguments)


@pytest.mark.parametrize("method", METHODS)
def test_an_infeasible_budget_is_raised_before_any_evaluation(method):
    with pytest.raises(InfeasibleBudget):
        search(Problem([[2, 1]], [[0, 1]], 0.5), lambda levels: pytest.fail("evaluated"), method=method)


def test_a_loss_that_raises_is_not_swallowed():
    def loss(levels):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        search(latency_problem(6, 2, seed=3), loss)

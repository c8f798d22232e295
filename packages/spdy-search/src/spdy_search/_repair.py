"""Repairs of an assignment for another budget: better levels or cheaper ones, never both at once."""

import numpy as np
from numpy.typing import NDArray

from ._problem import InfeasibleBudget, Levels, Problem
from ._solve import solve


def better(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
    """The best assignment within `budget` in which no module's prior rises."""
    no_worse = [row <= row[level] for row, level in zip(problem.priors, levels, strict=True)]
    return _solve_among(problem, no_worse, name, budget)


def cheaper(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
    """The best assignment within `budget` in which no module's cost rises.

    If none is within `budget`, return the best of the cheapest ones: the budget is only an estimate, based on
    more expensive levels.
    """
    costs = problem.costs[name]
    no_costlier = [row <= row[level] for row, level in zip(costs, levels, strict=True)]
    try:
        return _solve_among(problem, no_costlier, name, budget)
    except InfeasibleBudget:
        by_cost = Problem(problem.costs, costs, problem.budgets)
        cheapest = _solve_among(by_cost, no_costlier, name, problem.totals(levels)[name])
        return _solve_among(problem, no_costlier, name, problem.totals(cheapest)[name])


def _solve_among(problem: Problem, allowed: list[NDArray[np.bool_]], name: str, budget: float) -> Levels:
    """`solve` with only the `allowed` levels and with another budget for the cost `name`."""
    choices = [np.flatnonzero(row) for row in allowed]
    costs = {
        kind: [row[keep] for row, keep in zip(rows, choices, strict=True)]
        for kind, rows in problem.costs.items()
    }
    priors = [row[keep] for row, keep in zip(problem.priors, choices, strict=True)]
    places = solve(Problem(costs, priors, {**problem.budgets, name: budget}))
    return np.array([keep[place] for keep, place in zip(choices, places, strict=True)])

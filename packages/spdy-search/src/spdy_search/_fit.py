"""`fit_budget`: correct the levels that were found by what the whole really costs, and measure again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._problem import InfeasibleBudget, Levels, Problem
from ._search import SearchResult
from ._solve import solve


@dataclass(frozen=True)
class FitRound:
    """One measurement that decided what to do next.

    Attributes:
        levels: int64 (modules,), what was measured.
        cost: Its cost by the problem.
        measured: Its measured total.
    """

    levels: Levels
    cost: float
    measured: float


@dataclass(frozen=True)
class FitResult:
    """Levels corrected by measurement.

    Attributes:
        levels: int64 (modules,).
        cost: Their cost by the problem.
        measured: A fresh measurement of them, made after all decisions.
        target: What was aimed at.
        rounds: The measurements that led there.
    """

    levels: Levels
    cost: float
    measured: float
    target: float
    rounds: tuple[FitRound, ...]


def fit_budget(
    problem: Problem,
    result: SearchResult | ArrayLike,
    measure: Callable[[Levels], float],
    target: float,
    rounds: int = 3,
    *,
    cost: str | None = None,
    tolerance: float = 0.005,
) -> FitResult:
    """Correct levels until their measured total cost is at the target.

    Costs of single modules rarely add up to the cost of the whole. Each round measures the whole and moves
    the budget by target - measured, so that a part of the total which no level changes stays out of it. The
    new levels are the cheapest repair of the old ones, not a new solution: over target, modules only become
    cheaper, with the least added prior; under it, they only become better.

    Args:
        problem: The problem that was solved.
        result: Its search result, or an assignment.
        measure: `measure(levels)`, the total in the unit of the costs; it may contain a fixed part.
        target: The total wanted, at most, in the same unit.
        rounds: How often to measure and correct at most.
        cost: With several costs, the name of the measured one. The other budgets are kept.
        tolerance: A total below the target by no more than this share of it is left alone.

    Returns:
        The levels of the last correction and a fresh measurement of them, whether it meets the target or not.

    Raises:
        InfeasibleBudget: If the cheapest levels were measured and are still above the target.
        ValueError: If an argument is wrong or a measurement is not a finite number.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    if not math.isfinite(target):
        raise ValueError(f"target must be a finite number; got {target}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1; got {tolerance}")
    name = _measured_name(problem, cost)
    levels = problem.checked(result.levels if isinstance(result, SearchResult) else result)
    done: list[FitRound] = []
    for _ in range(rounds):
        measured = _finite(measure(levels.copy()))
        total = problem.totals(levels)[name]
        done.append(FitRound(levels, total, measured))
        if target - tolerance * abs(target) <= measured <= target:
            break
        budget = total + target - measured
        if measured > target:
            repaired = _cheaper(problem, levels, name, min(budget, math.nextafter(total, -math.inf)))
        else:
            repaired = _better(problem, levels, name, budget)
        if np.array_equal(repaired, levels):
            if measured > target:
                raise InfeasibleBudget(
                    f"target {target:.6g} cannot be reached: the cheapest levels, which cost {total:.6g}, "
                    f"were measured at {measured:.6g}",
                    smallest=measured,
                    budget=target,
                )
            break
        levels = repaired
    return FitResult(
        levels, problem.totals(levels)[name], _finite(measure(levels.copy())), target, tuple(done)
    )


def _better(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
    """The best assignment within `budget` in which no module's prior rises."""
    no_worse = [row <= row[level] for row, level in zip(problem.priors, levels, strict=True)]
    return _solve_among(problem, no_worse, name, budget)


def _cheaper(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
    """The best assignment within `budget` in which no module's cost rises.

    Where all are above `budget`, the cheapest: the budget was only estimated from what dearer ones cost.
    """
    costs = problem.costs[name]
    no_dearer = [row <= row[level] for row, level in zip(costs, levels, strict=True)]
    try:
        return _solve_among(problem, no_dearer, name, budget)
    except InfeasibleBudget:
        by_cost = Problem(problem.costs, costs, problem.budgets)
        cheapest = _solve_among(by_cost, no_dearer, name, problem.totals(levels)[name])
        return _solve_among(problem, no_dearer, name, problem.totals(cheapest)[name])


def _solve_among(problem: Problem, allowed: list[NDArray[np.bool_]], name: str, budget: float) -> Levels:
    """`solve` with only the levels `allowed`, and another budget for the cost `name`."""
    choices = [np.flatnonzero(row) for row in allowed]
    costs = {
        kind: [row[keep] for row, keep in zip(rows, choices, strict=True)]
        for kind, rows in problem.costs.items()
    }
    priors = [row[keep] for row, keep in zip(problem.priors, choices, strict=True)]
    places = solve(Problem(costs, priors, {**problem.budgets, name: budget}))
    return np.array([keep[place] for keep, place in zip(choices, places, strict=True)])


def _measured_name(problem: Problem, cost: str | None) -> str:
    if cost is None and len(problem.names) == 1:
        return problem.names[0]
    if cost not in problem.names:
        raise ValueError(f"cost must name the measured one of {', '.join(problem.names)}; got {cost!r}")
    return cost


def _finite(measured: float) -> float:
    try:
        value = float(measured)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"measure must return one number; got {type(measured).__name__}") from None
    if not math.isfinite(value):
        raise ValueError(f"a measurement must be a finite number; got {value}")
    return value

"""`fit_budget`: correct levels until their measured total cost meets a target."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._brief import brief_levels
from ._problem import InfeasibleBudget, Levels, Problem
from ._search import SearchResult
from ._solve import solve


@dataclass(frozen=True)
class FitRound:
    """One round of `fit_budget`: a measurement from which the levels were corrected.

    Attributes:
        levels: int64 (modules,), the measured assignment.
        cost: Total cost of the levels according to the problem.
        measured: Measured total cost of the levels.
    """

    levels: Levels
    cost: float
    measured: float

    def __repr__(self) -> str:
        return (
            f"FitRound(levels={brief_levels(self.levels)}, cost={self.cost:.6g}, "
            f"measured={self.measured:.6g})"
        )


@dataclass(frozen=True)
class FitResult:
    """Result of `fit_budget`.

    Attributes:
        levels: int64 (modules,), corrected assignment.
        cost: Total cost of the levels according to the problem.
        measured: Final measurement of the levels, independent of those that chose them.
        target: Target of the measured total cost.
        rounds: Measurements from which the levels were corrected.
    """

    levels: Levels
    cost: float
    measured: float
    target: float
    rounds: tuple[FitRound, ...]

    def __repr__(self) -> str:
        return (
            f"FitResult(levels={brief_levels(self.levels)}, cost={self.cost:.6g}, "
            f"measured={self.measured:.6g}, target={self.target:.6g}, rounds={len(self.rounds)})"
        )


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
    """Correct levels until their measured total cost meets a target.

    The costs of single modules rarely add up to the cost of the whole. Each round measures the whole and
    changes the budget by target - measured, so that a fixed part of the total does not matter. The new levels
    are a repair of the old ones, not a new solution: above the target, no module's cost rises, and as little
    prior as possible is added; below it, no module's prior rises.

    Args:
        problem: The problem that was solved.
        result: A search result of the problem, or an assignment.
        measure: Function that returns the measured total cost of an assignment, in the unit of the costs. The
            total may contain a fixed part.
        target: Largest total cost wanted, in the same unit.
        rounds: Largest number of rounds of measurement and correction.
        cost: Name of the measured cost; required if there are several. The other budgets are kept.
        tolerance: Share of the target by which a measured total may stay below it without being corrected.

    Returns:
        The levels after the last correction and a final measurement of them, which may miss the target.

    Raises:
        InfeasibleBudget: If the cheapest levels were measured and are still above the target.
        ValueError: If an argument is invalid or a measurement is not a finite number.
    """
    _check_arguments(target, rounds, tolerance)
    name = _measured_name(problem, cost)
    levels = problem.checked(result.levels if isinstance(result, SearchResult) else result)
    done: list[FitRound] = []
    for _ in range(rounds):
        measured = _finite(measure(levels.copy()))
        done.append(FitRound(levels, problem.totals(levels)[name], measured))
        if target - tolerance * abs(target) <= measured <= target:
            break
        corrected = _corrected(problem, done[-1], name, target)
        if np.array_equal(corrected, levels):
            break
        levels = corrected
    measured = _finite(measure(levels.copy()))
    return FitResult(levels, problem.totals(levels)[name], measured, target, tuple(done))


def _corrected(problem: Problem, last: FitRound, name: str, target: float) -> Levels:
    """Correct the levels of the last round; they stay the same if nothing better fits below the target."""
    budget = last.cost + target - last.measured
    if last.measured <= target:
        return _better(problem, last.levels, name, budget)
    # Rounding may make `budget` equal to the cost of these levels, which are known to miss the target.
    below = math.nextafter(last.cost, -math.inf)
    corrected = _cheaper(problem, last.levels, name, min(budget, below))
    if np.array_equal(corrected, last.levels):
        raise InfeasibleBudget(
            f"target {target:.6g} cannot be reached: the cheapest levels, which cost {last.cost:.6g}, "
            f"were measured at {last.measured:.6g}",
            smallest=last.measured,
            budget=target,
        )
    return corrected


def _better(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
    """The best assignment within `budget` in which no module's prior rises."""
    no_worse = [row <= row[level] for row, level in zip(problem.priors, levels, strict=True)]
    return _solve_among(problem, no_worse, name, budget)


def _cheaper(problem: Problem, levels: Levels, name: str, budget: float) -> Levels:
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


def _check_arguments(target: float, rounds: int, tolerance: float) -> None:
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    if not math.isfinite(target):
        raise ValueError(f"target must be a finite number; got {target}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1; got {tolerance}")


def _measured_name(problem: Problem, cost: str | None) -> str:
    if cost is None and len(problem.names) == 1:
        return problem.names[0]
    if cost not in problem.names:
        raise ValueError(f"cost must name the measured cost, one of {', '.join(problem.names)}; got {cost!r}")
    return cost


def _finite(measured: float) -> float:
    try:
        value = float(measured)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"measure must return one number; got {type(measured).__name__}") from None
    if not math.isfinite(value):
        raise ValueError(f"a measurement must be a finite number; got {value}")
    return value

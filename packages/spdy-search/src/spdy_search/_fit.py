"""`fit_budget`: correct the levels that were found by what the whole really costs, and measure again."""

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

    Raises:
        InfeasibleBudget: If the target is out of reach by what was measured.
        ValueError: If an argument is wrong or a measurement is not a finite number.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    name = _measured_name(problem, cost)
    levels = problem.checked(result.levels if isinstance(result, SearchResult) else result)
    done: list[FitRound] = []
    for _ in range(rounds):
        measured = _finite(measure(levels.copy()))
        total = problem.totals(levels)[name]
        done.append(FitRound(levels, total, measured))
        if target * (1 - tolerance) <= measured <= target:
            break
        budget = total + target - measured
        try:
            repaired = _repaired(problem, levels, name, budget, cheaper=measured > target)
        except InfeasibleBudget as error:
            raise problem.infeasible(
                f"target {target:.6g} cannot be reached: levels that cost {total:.6g} were measured at "
                f"{measured:.6g}, which leaves {budget:.6g} for a smallest cost of {error.smallest}"
            ) from None
        if np.array_equal(repaired, levels):
            break
        levels = repaired
    return FitResult(
        levels, problem.totals(levels)[name], _finite(measure(levels.copy())), target, tuple(done)
    )


def _repaired(problem: Problem, levels: Levels, name: str, budget: float, cheaper: bool) -> Levels:
    """The best assignment within `budget` whose modules are all at most as dear, or at least as good."""
    allowed: list[NDArray[np.int64]] = []
    for module, level in enumerate(levels):
        row = problem.costs[name][module] if cheaper else problem.priors[module]
        allowed.append(np.flatnonzero(row <= row[level]))
    budgets = {**problem.budgets, name: budget}
    moved = problem.with_budget(budgets if problem.named else budget).restricted(allowed)
    places = solve(moved)
    return np.array([choices[place] for choices, place in zip(allowed, places, strict=True)])


def _measured_name(problem: Problem, cost: str | None) -> str:
    if cost is None and len(problem.names) == 1:
        return problem.names[0]
    if cost not in problem.names:
        raise ValueError(f"cost must name the measured one of {', '.join(problem.names)}; got {cost!r}")
    return cost


def _finite(measured: float) -> float:
    value = float(measured)
    if not np.isfinite(value):
        raise ValueError(f"a measurement must be a finite number; got {value}")
    return value

"""`fit_budget`: correct levels until what was measured says that their total cost meets a target."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ._brief import brief_levels
from ._problem import InfeasibleBudget, Levels, Problem
from ._repair import better, cheaper
from ._search import SearchResult
from ._totals import Estimate, Measurement, Totals, as_measurement
from ._validate import finite_number, whole_number

CERTAIN = 1.96  # standard deviations: an interval of 95 %
LARGEST_MISS = 0.01  # expected miss, relative to the target, that is corrected even if it is not certain
FINE_ENOUGH = 0.03  # half of an interval, relative to the target, above which a round measures again
REPAIRS = 4  # attempts at a budget whose repaired levels are expected to meet the target

Following = Literal["stop", "same", "cheaper", "better"]
"""What follows a round: stop, or measure the same levels again, cheaper ones or ones with a smaller prior."""


@dataclass(frozen=True)
class FitRound:
    """One round of `fit_budget`: a measurement.

    Attributes:
        levels: int64 (modules,), the measured assignment.
        cost: Total cost of the levels according to the problem.
        measured: Measured total cost of the levels.
        error: Standard error of the measurement; 0 if it came without an interval.
        expected: Total cost of the levels that is expected from this round, those before it and the costs.
        deviation: Standard deviation of the expected total.
        following: What follows from that: "same", to measure the levels once more, "cheaper" or "better", to
            measure other levels next, or "stop". The last round allowed is followed by nothing.
    """

    levels: Levels
    cost: float
    measured: float
    error: float = 0.0
    expected: float = math.nan
    deviation: float = math.nan
    following: Following = "stop"

    def __repr__(self) -> str:
        return (
            f"FitRound(levels={brief_levels(self.levels)}, cost={self.cost:.6g}, "
            f"measured={self.measured:.6g})"
        )


@dataclass(frozen=True)
class FitResult:
    """Result of `fit_budget`.

    Attributes:
        levels: int64 (modules,), the chosen assignment.
        cost: Total cost of the levels according to the problem.
        measured: Final measurement of the levels, independent of those that chose them; None without one.
        target: Target of the measured total cost.
        rounds: Measurements from which the levels were chosen.
        expected: Total cost of the levels that is expected from all rounds and from the problem's costs.
        deviation: Standard deviation of the expected total.
    """

    levels: Levels
    cost: float
    measured: float | None
    target: float
    rounds: tuple[FitRound, ...]
    expected: float = math.nan
    deviation: float = math.nan

    def __repr__(self) -> str:
        measured = "" if self.measured is None else f"measured={self.measured:.6g}, "
        return (
            f"FitResult(levels={brief_levels(self.levels)}, cost={self.cost:.6g}, {measured}"
            f"target={self.target:.6g}, rounds={len(self.rounds)})"
        )


def fit_budget(
    problem: Problem,
    result: SearchResult | ArrayLike,
    measure: Callable[[Levels], float | tuple[float, ...]],
    target: float,
    rounds: int = 3,
    *,
    cost: str | None = None,
    tolerance: float = 0.005,
    fixed: float | None = None,
    final: bool = True,
    progress: Callable[[FitRound], None] | None = None,
) -> FitResult:
    """Correct levels until what was measured says that their total cost meets a target.

    The costs of single modules rarely add up to the cost of the whole. Each round measures the whole. All
    measurements together, each with its interval, and the problem's costs give the expected total of any
    assignment and an interval of 95 % around it (`_totals` has the model). The levels are corrected only if
    this interval excludes the target, so that noise is not chased. If the interval contains the target but is
    wider than 3 % of it to either side, the same levels are measured once more, unless most of that is an
    error which all measurements share.

    New levels are a repair of the old ones, not a new solution: above the target, no module's cost rises, and
    as little prior as possible is added; below it, no module's prior rises. In the end, the assignment with
    the smallest prior that may meet the target is chosen from all that were measured or proposed.

    Args:
        problem: The problem that was solved.
        result: A search result of the problem, or an assignment.
        measure: Function that returns the measured total cost of an assignment, in the unit of the costs: a
            number, which is taken to be exact, or a `Measurement`, or a tuple (value, low, high) with the
            ends of its 99 % interval. The total may contain a fixed part.
        target: Largest total cost wanted, in the same unit.
        rounds: Largest number of measurements, without the final one.
        cost: Name of the measured cost; required if there are several. The other budgets are kept.
        tolerance: Share of the target by which an expected total may stay below it without being corrected.
        fixed: Part of the total outside all modules, as far as it is known. None means target minus budget,
            if that is positive: this is right if the budget was made from the target.
        final: Whether to measure the chosen levels once more, for `FitResult.measured`.
        progress: Called with each round before the next one is measured.

    Returns:
        The chosen levels, which may miss the target, their expected total and their final measurement.

    Raises:
        InfeasibleBudget: If the cheapest levels were measured and are still above the target.
        ValueError: If an argument is invalid or a measurement is not a finite number.
    """
    rounds = whole_number("rounds", rounds, least=1)
    tolerance = finite_number("tolerance", tolerance)
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1; got {tolerance}")
    target = _checked_target(target)
    name = _measured_name(problem, cost)
    outside = max(target - problem.budgets[name], 0.0) if fixed is None else finite_number("fixed", fixed)
    levels = problem.checked(result.levels if isinstance(result, SearchResult) else result)
    fit = _Fit(problem, name, target, tolerance, Totals(problem, name, outside, target))
    for _ in range(rounds):
        following = fit.measured(levels, as_measurement(measure(levels.copy())))
        if progress is not None:
            progress(fit.rounds[-1])
        if following is None:
            break
        levels = following
    chosen = fit.chosen()
    estimate = fit.totals.estimate(chosen)
    return FitResult(
        chosen,
        problem.totals(chosen)[name],
        as_measurement(measure(chosen.copy())).value if final else None,
        target,
        tuple(fit.rounds),
        estimate.mean,
        estimate.deviation,
    )


class _Fit:
    """The rounds of one fit, and the assignments to choose from."""

    def __init__(self, problem: Problem, name: str, target: float, tolerance: float, totals: Totals) -> None:
        self.totals = totals
        self.rounds: list[FitRound] = []
        self._problem, self._name = problem, name
        self._target, self._tolerance = target, tolerance
        self._candidates: dict[tuple[int, ...], Levels] = {}

    def measured(self, levels: Levels, measured: Measurement) -> Levels | None:
        """Record a measurement; return the levels to measure next, or None if there is nothing to gain."""
        self.totals.add(levels, measured)
        self._candidates[tuple(levels.tolist())] = levels
        known = self.totals.estimate(levels)
        total = self._problem.totals(levels)[self._name]
        following, corrected = self._following(levels, known, measured)
        self.rounds.append(FitRound(levels, total, measured.value, measured.error, *known, following))
        return corrected

    def _following(
        self, levels: Levels, known: Estimate, measured: Measurement
    ) -> tuple[Following, Levels | None]:
        """Return the step after a round with these levels, and the levels to measure next, or None."""
        following: Following
        if self._too_slow(known):
            following, corrected = "cheaper", self._cheaper_levels(levels, measured.value)
        elif known.mean + self._doubt(known) < self._target - self._tolerance * abs(self._target):
            following, corrected = "better", self._better_levels(levels)
        else:
            # Measuring again reduces the errors of single measurements, but not one that all share.
            reducible = self.totals.estimate(levels, shared=False).deviation
            unclear = CERTAIN * reducible > FINE_ENOUGH * abs(self._target)
            return ("same", levels) if unclear else ("stop", None)
        key = tuple(corrected.tolist())
        if key in self._candidates:
            return "stop", None
        self._candidates[key] = corrected
        return following, corrected

    def chosen(self) -> Levels:
        """The candidate with the smallest prior of those that may meet the target; else the cheapest."""
        candidates = list(self._candidates.values())
        estimates = [self.totals.estimate(levels) for levels in candidates]
        suitable = [place for place, estimate in enumerate(estimates) if not self._too_slow(estimate)] or [
            min(range(len(candidates)), key=lambda place: estimates[place].mean)
        ]
        # Of equal priors, the first: the levels that the fit was started with are kept if nothing is better.
        return candidates[min(suitable, key=lambda place: self._problem.prior(candidates[place]))]

    def _too_slow(self, known: Estimate) -> bool:
        return known.mean - self._doubt(known) > self._target

    def _doubt(self, known: Estimate) -> float:
        """Largest distance of an expected total from the target that is not corrected."""
        return min(CERTAIN * known.deviation, LARGEST_MISS * abs(self._target))

    def _better_levels(self, levels: Levels) -> Levels:
        """Repair levels that are below the target."""
        total = self._problem.totals(levels)[self._name]
        return self._repaired(
            levels, lambda budget: better(self._problem, levels, self._name, max(budget, total))
        )

    def _cheaper_levels(self, levels: Levels, measured: float) -> Levels:
        """Repair levels that are above the target.

        Raises:
            InfeasibleBudget: If there are no cheaper levels.
        """
        total = self._problem.totals(levels)[self._name]
        # Rounding may make the budget equal to the cost of these levels, which are known to miss the target.
        below = math.nextafter(total, -math.inf)
        corrected = self._repaired(
            levels, lambda budget: cheaper(self._problem, levels, self._name, min(budget, below))
        )
        if np.array_equal(corrected, levels):
            raise InfeasibleBudget(
                f"target {self._target:.6g} cannot be reached: the cheapest levels, which cost {total:.6g}, "
                f"were measured at {measured:.6g}",
                smallest=measured,
                budget=self._target,
            )
        return corrected

    def _repaired(self, levels: Levels, repair: Callable[[float], Levels]) -> Levels:
        """Repair levels with the budget at which the target is expected to be met.

        The relative error of the prediction differs a little between the old levels and the new ones, so that
        the budget may need a second look.
        """
        slope = self.totals.slope(levels)
        missing = self._target - self.totals.estimate(levels).mean
        budget = self._problem.totals(levels)[self._name] + missing / slope
        for _ in range(REPAIRS):
            repaired = repair(budget)
            over = self.totals.estimate(repaired).mean - self._target
            if over <= 0 or np.array_equal(repaired, levels):
                break
            budget -= over / slope
        return repaired


def _checked_target(target: float) -> float:
    try:
        value = float(target)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"target must be a finite number; got {type(target).__name__}") from None
    if not math.isfinite(value):
        raise ValueError(f"target must be a finite number; got {value}")
    return value


def _measured_name(problem: Problem, cost: str | None) -> str:
    if cost is None and len(problem.names) == 1:
        return problem.names[0]
    if cost not in problem.names:
        raise ValueError(f"cost must name the measured cost, one of {', '.join(problem.names)}; got {cost!r}")
    return cost

"""Fit: measure the whole model, and correct the levels by what was measured, at most three times.

Fit only chooses levels. The speedup that is reported is measured at the end, on the finished model.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spdy_search import InfeasibleBudget, Measurement, fit_budget

from ziplm.errors import UnreachableTarget
from ziplm.stages.choices import SECONDS, Choices, Levels
from ziplm.stages.measure import Measured

Total = Callable[[Levels], Measurement]
"""Measures a model with these levels, in seconds on the scale of the latency table, with a 99 % interval."""
ROUNDS = 3
TOLERANCE = 0.01


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Attributes:
        levels: one level for each branch.
        rounds: the measurements on the way, each with the measured speedup ("speedup") and the seconds that
            the table predicts ("predicted_seconds"); empty if nothing was measured.
    """

    levels: tuple[int, ...]
    rounds: list[dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Fitted":
        """Make a result from the values of `to_dict`."""
        return cls(tuple(values["levels"]), values["rounds"])


def fit_levels(
    choices: Choices,
    levels: Levels,
    prior: str,
    budgets: Mapping[str, float],
    measure_levels: Callable[[Levels], Measured],
    *,
    absolute: bool = False,
) -> Fitted:
    """Correct levels by up to three measurements of the whole model, so that it becomes as fast as required.

    Args:
        choices: what `levels` were chosen from.
        levels: the levels that the search found.
        prior: the prior that says which correction does the least harm.
        budgets: budgets by name of the cost; the seconds are those of the whole model, on the scale of the
            latency table.
        measure_levels: measures the model with these levels beside the dense model.
        absolute: whether the budget is in measured seconds, as for a latency target. Otherwise the measured
            speedup counts, so that it does not matter if the machine is slower now than for the table.

    Raises:
        UnreachableTarget: if even the smallest sizes are too slow when they are measured.
    """
    rounds: list[dict[str, float]] = []

    def total(candidate: Levels) -> Measurement:
        measured = measure_levels(candidate)
        predicted = choices.seconds(candidate)
        rounds.append({"predicted_seconds": predicted, "speedup": measured.speedup})
        seconds = measured.seconds if absolute else choices.dense_seconds / measured.speedup
        # The interval of the speedup serves for both: it is the wider one, with the dense model's noise.
        fastest, slowest = measured.speedup / measured.high, measured.speedup / measured.low
        return Measurement(seconds, seconds * fastest, seconds * slowest, confidence=0.99)

    if SECONDS in budgets:  # limits of size need no measurement
        correct = _fit_uniform if choices.uniform else _fit_each
        levels = correct(choices, levels, prior, budgets, total)
    return Fitted(tuple(int(level) for level in levels), rounds)


def _fit_each(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Correct the levels branch by branch, with the least harm."""
    problem = choices.problem(prior, budgets)
    try:
        found = fit_budget(
            problem,
            levels,
            total,
            budgets[SECONDS],
            ROUNDS,
            cost=SECONDS,
            tolerance=TOLERANCE,
            final=False,  # the finished model is measured later
        )
    except InfeasibleBudget as error:
        raise _unreachable(error) from error
    return found.levels


def _fit_uniform(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Solve again for sizes that all layers share, with the budget corrected by what was measured.

    Sizes whose interval contains the budget are kept, since the difference may be noise.
    """
    tried: list[tuple[Measurement, tuple[int, ...]]] = []
    for _ in range(ROUNDS):
        measured = total(levels)
        tried.append((measured, tuple(int(level) for level in levels)))
        if (1 - TOLERANCE) * budgets[SECONDS] <= measured.high and measured.low <= budgets[SECONDS]:
            break
        predicted = choices.seconds(levels)
        allowed = predicted + budgets[SECONDS] - measured.value
        if measured.value > budgets[SECONDS]:  # common sizes are far apart: these must not be chosen again
            allowed = min(max(allowed, (1 + 1e-9) * choices.smallest_seconds), (1 - 1e-9) * predicted)
        try:
            levels = choices.solve(prior, {**budgets, SECONDS: allowed})
        except InfeasibleBudget as error:
            raise _unreachable(error) from error
        if tuple(int(level) for level in levels) in [known for _, known in tried]:
            break
    # The last correction may miss the budget, or not have been measured: prefer the largest that met it.
    within = [(measured.value, known) for measured, known in tried if measured.low <= budgets[SECONDS]]
    return max(within)[1] if within else levels


def _unreachable(error: InfeasibleBudget) -> UnreachableTarget:
    return UnreachableTarget(
        f"measured as a whole, the model does not reach the target: {error}", "ask for a smaller speedup"
    )

"""Fit: shrink, measure, and correct the levels by what was measured, at most three times."""

from collections.abc import Callable, Mapping
from typing import Any

from obs_structured import Trace
from spdy_search import InfeasibleBudget, fit_budget
from transformers import PreTrainedModel

from ziplm.errors import UnreachableTarget
from ziplm.stages.choices import SECONDS, Choices, Levels
from ziplm.stages.measure import Measured
from ziplm.stages.shrink import shrink
from ziplm.stages.traces import InOrder

Total = Callable[[Levels], float]
"""Measures a model with these levels, in seconds on the scale of the latency table."""
ROUNDS = 3
TOLERANCE = 0.01


def fit_levels(
    model: PreTrainedModel,
    traces: Mapping[str, Trace],
    choices: Choices,
    levels: Levels,
    prior: str,
    budgets: Mapping[str, float],
    measure_small: Callable[[PreTrainedModel], Measured],
    *,
    absolute: bool = False,
) -> tuple[tuple[int, ...], list[dict[str, Any]], Measured]:
    """Correct levels until the model, measured as a whole, is as fast as required.

    Args:
        model: the current model.
        traces: traces by branch name.
        choices: what `levels` were chosen from.
        levels: the levels that the search found.
        prior: the prior by which a correction does the least harm.
        budgets: budgets by name of the cost; the seconds are those of the whole model, on the scale of the
            latency table.
        measure_small: measures a shrunk model beside the dense model.
        absolute: whether the seconds are those of a clock. Otherwise they are relative to the dense model,
            so that it does not matter if the machine is slower now than when the table was measured.

    Returns:
        The levels; the rounds, each with the measured speedup and the predicted seconds; and a final
        measurement, independent of those that chose the levels.
    """
    rounds: list[dict[str, Any]] = []
    measurements: list[Measured] = []

    def total(candidate: Levels) -> float:
        in_order = InOrder(traces, [own.branch.name for own in choices.levels])
        measured = measure_small(shrink(model, choices.removed(candidate), in_order))
        measurements.append(measured)
        predicted = choices.table.predict(choices.sizes(candidate))
        rounds.append({"predicted_seconds": predicted, "speedup": measured.speedup})
        return measured.seconds if absolute else choices.dense_seconds / measured.speedup

    if SECONDS not in budgets:
        total(levels)
        return tuple(int(level) for level in levels), [], measurements[-1]
    fit = _fit_uniform if choices.uniform else _fit_each
    fitted = fit(choices, levels, prior, budgets, total)
    return tuple(int(level) for level in fitted), rounds[:-1], measurements[-1]


def _fit_each(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Correct the levels branch by branch, with the least harm."""
    problem = choices.problem(prior, budgets)
    try:
        found = fit_budget(
            problem, levels, total, budgets[SECONDS], ROUNDS, cost=SECONDS, tolerance=TOLERANCE
        )
    except InfeasibleBudget as error:
        raise _unreachable(error) from error
    return found.levels


def _fit_uniform(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Choose the common sizes again, with a budget corrected by the error of the measurement."""
    tried: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(ROUNDS):
        measured = total(levels)
        tried.append((measured, tuple(int(level) for level in levels)))
        if (1 - TOLERANCE) * budgets[SECONDS] <= measured <= budgets[SECONDS]:
            break
        predicted = choices.table.fixed + choices.total(SECONDS, levels)
        allowed = predicted + budgets[SECONDS] - measured
        if measured > budgets[SECONDS]:  # common sizes are far apart: these must not be chosen again
            allowed = min(max(allowed, (1 + 1e-9) * choices.smallest_seconds), (1 - 1e-9) * predicted)
        try:
            levels = choices.solve(prior, {**budgets, SECONDS: allowed})
        except InfeasibleBudget as error:
            raise _unreachable(error) from error
        if tuple(int(level) for level in levels) in [own for _, own in tried]:
            break
    # The last correction may miss the budget, or not have been measured: prefer the largest that met it.
    within = [own for own in tried if own[0] <= budgets[SECONDS]]
    levels = max(within)[1] if within else levels
    total(levels)  # the final measurement, which decides nothing
    return levels


def _unreachable(error: InfeasibleBudget) -> UnreachableTarget:
    return UnreachableTarget(
        f"the target cannot be reached when it is measured: {error}", "ask for a smaller speedup"
    )

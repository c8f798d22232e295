"""Stage 5, fit: shrink, measure, correct the levels by what was measured, at most three times."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latency_profiler import Comparison
from obs_structured import Trace
from spdy_search import InfeasibleBudget, fit_budget
from transformers import PreTrainedModel

from ziplm.benchmarking import Setting, compare_models
from ziplm.errors import UnreachableTarget
from ziplm.search import SECONDS, Choices, Levels
from ziplm.shrink import shrink
from ziplm.traces import InOrder

Total = Callable[[Levels], float]
"""Measures levels: seconds of the whole model, on the scale of the table."""
ROUNDS = 3
TOLERANCE = 0.01


@dataclass(frozen=True)
class Measured:
    """A measurement of a model beside the dense one, in interleaved rounds.

    Attributes:
        speedup: dense time / own time.
        low: end of its 99 % interval.
        high: the other end.
        seconds: its own time.
        dense_seconds: that of the dense model.
    """

    speedup: float
    low: float
    high: float
    seconds: float
    dense_seconds: float

    @classmethod
    def of(cls, comparison: Comparison) -> "Measured":
        """From a comparison of "dense" and "small"."""
        ratio = comparison.speedup("small")
        return cls(
            ratio.value, ratio.low, ratio.high, comparison["small"].seconds, comparison["dense"].seconds
        )


def for_measuring(model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
    """The model itself if it is where and what it must be, else a copy: measuring must not change it."""
    same = model.dtype == setting.dtype and model.device.type == setting.device.split(":")[0]
    return model if same else copy.deepcopy(model)


def measure(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    setting: Setting,
    *,
    rel_error: float = 0.01,
    max_seconds: float = 30.0,
    progress: Callable[[int, float], None] | None = None,
) -> Measured:
    """How much faster `small` is than `dense`."""
    models = {"dense": for_measuring(dense, setting), "small": for_measuring(small, setting)}
    return Measured.of(
        compare_models(models, setting, rel_error=rel_error, max_seconds=max_seconds, progress=progress)
    )


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
    """Correct levels until the model, measured as a whole, is as fast as it should be.

    Args:
        model: the dense one.
        traces: by name of the module.
        choices: what `levels` were chosen from.
        levels: what the search found.
        prior: whose cost a repair keeps low.
        budgets: by name of the cost; the seconds are those of the whole model, on the scale of the table.
        measure_small: measures a shrunk model beside the dense one.
        absolute: whether the seconds are what a clock must show; otherwise they are relative to the dense
            model, and a machine that is slower today than when the table was made does not matter.

    Returns:
        The levels, the rounds (speedup measured, seconds predicted), and a fresh measurement that decided
        nothing.
    """
    rounds: list[dict[str, Any]] = []
    measurements: list[Measured] = []

    def total(candidate: Levels) -> float:
        in_order = InOrder(traces, [m.module.name for m in choices.levels])
        small = shrink(model, choices.removed(candidate), in_order)
        measured = measure_small(small)
        measurements.append(measured)
        predicted = choices.table.predict(choices.sizes(candidate))
        rounds.append({"predicted_seconds": predicted, "speedup": measured.speedup})
        return measured.seconds if absolute else choices.dense_seconds / measured.speedup

    if SECONDS not in budgets:
        total(levels)
        return tuple(int(level) for level in levels), [], measurements[-1]
    if choices.uniform:
        fitted = _fit_uniform(choices, levels, prior, budgets, total)
    else:
        fitted = _fit_each(choices, levels, prior, budgets, total)
    return tuple(int(level) for level in fitted), rounds[:-1], measurements[-1]


def _fit_each(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Repair the levels module by module, at the least harm."""
    problem = choices.problem(prior, budgets)
    try:
        found = fit_budget(
            problem, levels, total, budgets[SECONDS], ROUNDS, cost=SECONDS, tolerance=TOLERANCE
        )
    except InfeasibleBudget as error:
        raise UnreachableTarget(
            f"the target cannot be reached when it is measured: {error}", "ask for a smaller speedup"
        ) from error
    return found.levels


def _fit_uniform(
    choices: Choices, levels: Levels, prior: str, budgets: Mapping[str, float], total: Total
) -> Levels:
    """Choose again for all layers at once, with the time moved by what the measurement was off."""
    allowed = budgets[SECONDS]
    tried: list[tuple[float, Levels]] = []
    for _ in range(ROUNDS):
        measured = total(levels)
        tried.append((measured, levels))
        if (1 - TOLERANCE) * budgets[SECONDS] <= measured <= budgets[SECONDS]:
            break
        allowed += budgets[SECONDS] - measured
        try:
            again = choices.solve(prior, {**budgets, SECONDS: allowed})
        except InfeasibleBudget as error:
            raise UnreachableTarget(
                f"the target cannot be reached when it is measured: {error}", "ask for a smaller speedup"
            ) from error
        if list(again) == list(levels):
            break
        levels = again
    else:  # sizes that all layers share lie far apart: the last correction may be worse than one before it
        within = [own for own in tried if own[0] <= budgets[SECONDS]]
        levels = max(within, key=lambda own: own[0])[1] if within else levels
    total(levels)  # fresh: it decides nothing
    return levels

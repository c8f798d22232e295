"""Bring one assignment within all budgets with the cheapest changes, and use up what is left."""

import numpy as np
from numpy.typing import NDArray

from ._problem import Levels, Problem
from ._relax import EDGE
from ._table import Table


def repair(
    problem: Problem, weights: NDArray[np.float64], levels: Levels, movable: NDArray[np.bool_]
) -> Levels | None:
    """An assignment within budget that differs from `levels` only in `movable` modules, or None.

    Over budget, the change with the least weighted prior per cost relieved is made until nothing is over;
    then changes that lower the weighted prior are made, the largest first, while they fit.

    Args:
        problem: The problem.
        weights: float64 (modules,).
        levels: int64 (modules,); may be over budget.
        movable: bool (modules,).
    """
    for limit in (1 + EDGE, 1 - 2 * EDGE):  # the second only where float sums and math.fsum disagree
        repaired = _repair(
            problem.table, weights[:, None] * problem.table.prior, levels.copy(), movable, limit
        )
        if repaired is None or problem.fits(repaired):
            break
    return repaired


def _repair(
    table: Table, error: NDArray[np.float64], levels: Levels, movable: NDArray[np.bool_], limit: float
) -> Levels | None:
    modules = np.arange(len(levels))
    open_levels = table.useful & movable[:, None]
    filling = False  # once within budget it stays so, whatever rounding says: no change is made and undone
    while True:
        cost = table.cost - table.cost[:, modules, levels][:, :, None]  # (costs, modules, L)
        spent = table.cost[:, modules, levels].sum(axis=1)
        harm = error - error[modules, levels][:, None]
        over = spent - limit
        filling = filling or not (over > 0).any()
        if not filling:
            left = np.maximum(over[:, None, None] + cost, 0).sum(axis=0)
            relief = np.maximum(over, 0).sum() - left
            candidates = open_levels & (relief > EDGE)  # less is rounding, and could go on for ever
            score = np.where(candidates, np.maximum(harm, 0) / np.where(candidates, relief, 1), np.inf)
        else:
            candidates = open_levels & (harm < 0) & (cost <= -over[:, None, None]).all(axis=0)
            score = np.where(candidates, harm, np.inf)
        module, level = divmod(int(score.argmin()), score.shape[1])
        if not candidates[module, level]:
            return levels if filling else None
        levels[module] = level

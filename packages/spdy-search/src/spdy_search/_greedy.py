"""Bring an assignment within all budgets with the least harmful changes, then use up what is left."""

import numpy as np
from numpy.typing import NDArray

from ._problem import Levels, Problem
from ._relax import EDGE
from ._table import Table


def repair(
    problem: Problem, weights: NDArray[np.float64], levels: Levels, movable: NDArray[np.bool_]
) -> Levels | None:
    """Bring an assignment within budget by changing only `movable` modules.

    While a cost is over budget, make the change that adds the least weighted prior per cost relieved. Then
    make the changes that lower the weighted prior and stay within budget, largest first.

    Args:
        problem: The problem.
        weights: float64 (modules,), factors on the priors.
        levels: int64 (modules,); may be over budget.
        movable: bool (modules,).

    Returns:
        The repaired levels, int64 (modules,), or None if the changes cannot bring them within budget.
    """
    prior = weights[:, None] * problem.table.prior
    for limit in (1 + EDGE, 1 - 2 * EDGE):  # the second only where float sums and math.fsum disagree
        repaired = _repair(problem.table, prior, levels.copy(), movable, limit)
        if repaired is None or problem.fits(repaired):
            break
    return repaired


def _repair(
    table: Table, prior: NDArray[np.float64], levels: Levels, movable: NDArray[np.bool_], limit: float
) -> Levels | None:
    """Repair `levels` in place, with total costs up to `limit` in units of the capacity.

    `prior` is the weighted prior, float64 (modules, L).
    """
    modules = np.arange(len(levels))
    open_levels = table.useful & movable[:, None]
    filling = False  # never reset, so that rounding cannot make changes alternate forever
    while True:
        chosen_cost = table.cost[:, modules, levels]  # (costs, modules)
        added_cost = table.cost - chosen_cost[:, :, None]  # (costs, modules, L)
        added_prior = prior - prior[modules, levels][:, None]  # (modules, L)
        over = chosen_cost.sum(axis=1) - limit
        filling = filling or not (over > 0).any()
        score_changes = _filling_score if filling else _relief_score
        score = np.where(open_levels, score_changes(added_cost, added_prior, over), np.inf)
        module, level = divmod(int(score.argmin()), score.shape[1])
        if score[module, level] == np.inf:
            return levels if filling else None
        levels[module] = level


def _relief_score(
    added_cost: NDArray[np.float64], added_prior: NDArray[np.float64], over: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weighted prior added per cost relieved, (modules, L); infinite for changes without relief.

    A relief of EDGE or less counts as none: it is rounding, and such changes could go on forever.
    """
    still_over = np.maximum(over[:, None, None] + added_cost, 0).sum(axis=0)
    relief = np.maximum(over, 0).sum() - still_over
    relieves = relief > EDGE
    return np.where(relieves, np.maximum(added_prior, 0) / np.where(relieves, relief, 1), np.inf)


def _filling_score(
    added_cost: NDArray[np.float64], added_prior: NDArray[np.float64], over: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weighted prior added, (modules, L); infinite for changes that do not lower it or exceed a budget."""
    improves = (added_prior < 0) & (added_cost <= -over[:, None, None]).all(axis=0)
    return np.where(improves, added_prior, np.inf)

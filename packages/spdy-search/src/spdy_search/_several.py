"""Several budgets at once: good solutions for many weight vectors, with one multiplier per budget."""

import numpy as np
from numpy.typing import NDArray

from ._greedy import repair
from ._problem import Levels, Problem
from ._threads import one_blas_thread

MULTIPLIER_STEPS = 80


def relax_several(problem: Problem, weights: NDArray[np.float64]) -> tuple[Levels, NDArray[np.bool_]]:
    """Find good solutions under several budgets for many weight vectors.

    The multiplier of a cost grows while the cost is over its budget and shrinks otherwise. The best feasible
    solution found on the way is improved until the budgets are used up.

    Args:
        problem: The problem to solve; each module needs a useful level.
        weights: float64 (K, modules), each row scaled so that its widest weighted range of priors is 1.

    Returns:
        One assignment per row of `weights`, int64 (K, modules), and whether it is within budget, bool (K,).
    """
    with one_blas_thread():
        levels, known = _best_priced_levels(problem, weights)
    every_module = np.ones(problem.modules, dtype=bool)
    for row in np.flatnonzero(known):
        filled = repair(problem, weights[row], levels[row], every_module)
        known[row] = filled is not None
        if filled is not None:
            levels[row] = filled
    return levels, known


def _best_priced_levels(problem: Problem, weights: NDArray[np.float64]) -> tuple[Levels, NDArray[np.bool_]]:
    """Adjust the multipliers for a fixed number of steps.

    Returns:
        The best feasible levels met, int64 (K, modules), and whether there were any, bool (K,).
    """
    table = problem.table
    prior = weights[:, :, None] * table.prior  # (K, modules, L)
    prior[:, ~table.useful] = np.inf
    cost = np.where(table.useful, table.cost, 0.0)
    kinds, modules, _ = cost.shape
    log_multiplier = np.zeros((len(weights), kinds))
    best = np.full(len(weights), np.inf)
    levels = np.zeros(weights.shape, dtype=np.int64)
    for step in np.geomspace(2.0, 0.02, MULTIPLIER_STEPS):
        priced = prior + np.tensordot(np.exp(log_multiplier), cost, axes=1)
        candidate = priced.argmin(axis=2)  # (K, modules)
        spent = cost[:, np.arange(modules), candidate].sum(axis=2).T  # (K, kinds)
        total = np.take_along_axis(prior, candidate[:, :, None], axis=2).sum(axis=(1, 2))
        better = (spent <= 1).all(axis=1) & (total < best)
        best[better] = total[better]
        levels[better] = candidate[better]
        log_multiplier += step * np.clip(spent - 1, -1, 1)
    return levels, np.isfinite(best)

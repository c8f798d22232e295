"""Many weight vectors at once: a Lagrangian solution each, then a short repair that uses up what is left.

The best multiplier is the value per cost of that step on some module's hull at which the budget runs out,
when steps are bought in falling order of prior saved per cost. What is left of the budget then is worth up
to a few per cent of the total prior. So for a few rounds the best change, or pair of changes, is made out
of the few that lose least at that multiplier. Arrays are (…, K), the K problems side by side: that is what
makes numpy fast here.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._ladder import Ladder

MOST_ROUNDS = 10
GOOD_ENOUGH = 6e-3  # times the rounds done: problems this close to their lower bound are left alone
CANDIDATES = 16  # changes that are combined; as good as 48
EDGE = 1e-12  # how far float64 sums may be off, in units of the capacity


class Relaxed(NamedTuple):
    """Solutions of K weighted problems, in the units of the ladder.

    Attributes:
        rung: int64 (modules, K), columns of the ladder.
        multiplier: float64 (K,), the weighted prior that one capacity is worth.
        spent: float64 (K,), the cost.
        error: float64 (K,), the weighted prior.
    """

    rung: NDArray[np.int64]
    multiplier: NDArray[np.float64]
    spent: NDArray[np.float64]
    error: NDArray[np.float64]


def relax(
    ladder: Ladder,
    weights: NDArray[np.float64],
    limit: float = 1 + EDGE,
    good_enough: float = GOOD_ENOUGH,
) -> Relaxed:
    """Solve for `weights` (K, modules), spending at most `limit` capacities.

    Up to the default limit an assignment may fit or not; up to 1 - EDGE it fits for certain.
    """
    by_module = np.ascontiguousarray(weights.T)
    rung, multiplier = _buy_steps(ladder, by_module, limit)
    at = rung + row_starts(ladder)
    spent = ladder.cost.take(at).sum(axis=0)
    solution = Relaxed(rung, multiplier, spent, (ladder.prior.take(at) * by_module).sum(axis=0))
    bound = solution.error - multiplier * (1 - spent)
    active = np.arange(len(weights))
    for done in range(1, MOST_ROUNDS + 1):
        if not active.size:
            break
        part = Relaxed(
            solution.rung[:, active],
            solution.multiplier[active],
            solution.spent[active],
            solution.error[active],
        )
        changed = _repair(ladder, by_module[:, active], part, limit)
        for whole, new in zip(solution, part, strict=True):
            whole[..., active] = new
        far = part.error - bound[active] > good_enough * done * part.error
        active = active[changed & far]
    return solution


@lru_cache(maxsize=8)
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.triu_indices(count, 1)


def row_starts(ladder: Ladder) -> NDArray[np.int64]:
    """Where the rows of the ladder's arrays begin when they are flat, int64 (modules, 1)."""
    modules, width = ladder.cost.shape
    return np.arange(0, modules * width, width)[:, None]


def _tagged(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], int]:
    """Integers (K, n) in the order of `values` ≥ 0 (n, K), n - 1 - row in the low bits; and a mask of these.

    Sorting them is several times as fast as numpy's argsort and argpartition. What it costs is precision:
    with 300 rows values within 6e-5 of each other go by their row, the later one as the smaller.
    """
    count = len(values)
    mask = (1 << (count - 1).bit_length()) - 1
    tags = np.arange(count - 1, -1, -1, dtype=np.int32)
    return (np.ascontiguousarray(values.T).view(np.int32) & ~mask) | tags, mask


def _buy_steps(
    ladder: Ladder, weights: NDArray[np.float64], limit: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rungs (modules, K) bought before the budget runs out; value per cost (K,) of the step that broke it."""
    points = len(ladder.hull_rung)
    value = (
        weights.astype(np.float32).take(ladder.hull_module, axis=0) * ladder.hull_slope[:, None]
    )  # (points, K)
    value[ladder.hull_start] = np.finfo(np.float32).max  # the cheapest rungs come first, and cost nothing
    tagged, mask = _tagged(value)
    falling = np.sort(tagged, axis=1)[:, ::-1]
    order = (points - 1) - (falling & mask).T
    total = ladder.hull_cost.take(order)  # (points, K)
    np.cumsum(total, axis=0, out=total)
    bought = np.count_nonzero(total <= limit, axis=0)
    last = np.minimum(bought, points - 1)
    broke = np.where(bought < points, falling[np.arange(len(falling)), last], -1).astype(np.int32)
    steps = np.add.reduceat(tagged > broke[:, None], ladder.hull_start, axis=1, dtype=np.int64)
    multiplier = np.maximum(broke, 0).view(np.float32).astype(np.float64)
    return ladder.hull_rung.take(steps.T + (ladder.hull_start - 1)[:, None]), multiplier


def _repair(
    ladder: Ladder, weights: NDArray[np.float64], solution: Relaxed, limit: float
) -> NDArray[np.bool_]:
    """Make the best one or two changes in every problem, in place; say where. `weights` is (modules, K)."""
    modules, problems = weights.shape
    columns = np.arange(problems)
    moves = np.arange(0, ladder.move.size, ladder.cost.size)[:, None, None]
    at = moves + (solution.rung + row_starts(ladder))  # (moves, modules, K)
    cost = ladder.move_cost.take(at).reshape(-1, problems)
    prior = (ladder.move_prior.take(at) * weights).reshape(-1, problems)

    changes = len(cost)
    count = min(CANDIDATES, changes)
    lost, mask = _tagged(
        np.maximum(prior + solution.multiplier * cost, 0.0).astype(np.float32)
    )  # (K, changes)
    chosen = changes - 1 - (np.partition(lost, count - 1, axis=1)[:, :count].T & mask)  # (candidates, K)
    flat = chosen * problems + columns

    # Row 0 is to change nothing, so that pairs with it are single changes.
    first, second = _pairs(count + 1)
    nothing = np.zeros((1, problems))
    cost = np.concatenate([nothing, cost.take(flat)])
    prior = np.concatenate([nothing, prior.take(flat)])
    module = np.concatenate([np.full((1, problems), -1), chosen % modules])
    pair_cost = cost.take(first, axis=0) + cost.take(second, axis=0)  # (pairs, K)
    pair_prior = prior.take(first, axis=0) + prior.take(second, axis=0)
    possible = pair_cost <= limit - solution.spent
    possible &= module.take(first, axis=0) != module.take(second, axis=0)
    pair_prior = np.where(possible, pair_prior, np.inf)
    best = pair_prior.argmin(axis=0)
    gain = pair_prior[best, columns]

    changed: NDArray[np.bool_] = gain < 0
    goal = ladder.move.take(at.take(flat))
    for member in (first.take(best), second.take(best)):
        moved = columns[changed & (member > 0)]
        solution.rung[module[member[moved], moved], moved] = goal[member[moved] - 1, moved]
    solution.spent[changed] += pair_cost[best, columns][changed]
    solution.error[changed] += gain[changed]
    return changed

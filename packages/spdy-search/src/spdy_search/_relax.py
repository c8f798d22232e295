"""Good solutions for many weight vectors at once: a Lagrangian relaxation and a few rounds of improvement.

Steps along the modules' hulls are bought in falling order of prior saved per cost until the budget runs out.
The best Lagrange multiplier is the prior saved per cost of the first step that no longer fits. The budget
left at that point is worth up to a few per cent of the total prior. A few rounds of improvement use it up:
each selects the changes with the smallest added prior + multiplier·cost, and makes the best one, or the best
pair, of them.

Arrays are (…, K), with the K problems side by side, which lets NumPy handle all of them in one operation.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._ladder import Ladder

MOST_ROUNDS = 10
GOOD_ENOUGH = 6e-3  # default of `good_enough`, see `relax`
CANDIDATES = 16  # changes that are combined into pairs; 48 give no better solutions
EDGE = 1e-12  # largest rounding error of a float64 sum of costs, in units of the capacity


class Relaxed(NamedTuple):
    """Solutions of K weighted problems, in the units of the ladder.

    Attributes:
        rung: int64 (modules, K), columns of the ladder.
        multiplier: float64 (K,), weighted prior saved per capacity.
        spent: float64 (K,), total cost.
        prior: float64 (K,), total weighted prior.
    """

    rung: NDArray[np.int64]
    multiplier: NDArray[np.float64]
    spent: NDArray[np.float64]
    prior: NDArray[np.float64]


class _Changes(NamedTuple):
    """Single-module changes, side by side for K problems; row 0 changes nothing.

    Attributes:
        module: int64 (changes, K), -1 in row 0.
        rung: int64 (changes, K), new column of the ladder.
        cost: float64 (changes, K), added cost.
        prior: float64 (changes, K), added weighted prior.
    """

    module: NDArray[np.int64]
    rung: NDArray[np.int64]
    cost: NDArray[np.float64]
    prior: NDArray[np.float64]


def relax(
    ladder: Ladder,
    weights: NDArray[np.float64],
    limit: float = 1 + EDGE,
    good_enough: float = GOOD_ENOUGH,
) -> Relaxed:
    """Find good solutions for `weights` (K, modules).

    Args:
        ladder: The problem.
        weights: float64 (K, modules), at least 0.
        limit: Largest total cost, in units of the capacity. With the default, a solution may exceed
            the budget by a rounding error; with 1 - EDGE, it cannot.
        good_enough: After n rounds, a problem is finished if its relative gap to the lower bound is at most n
            times this.
    """
    by_module = np.ascontiguousarray(weights.T)
    solution = _lagrangian_solution(ladder, by_module, limit)
    bound = solution.prior - solution.multiplier * (1 - solution.spent)
    active = np.arange(len(weights))
    for done in range(1, MOST_ROUNDS + 1):
        if not active.size:
            break
        part = Relaxed(
            solution.rung[:, active],
            solution.multiplier[active],
            solution.spent[active],
            solution.prior[active],
        )
        changed = _improve(ladder, by_module[:, active], part, limit)
        for whole, new in zip(solution, part, strict=True):
            whole[..., active] = new
        far = part.prior - bound[active] > good_enough * done * part.prior
        active = active[changed & far]
    return solution


def row_starts(ladder: Ladder) -> NDArray[np.int64]:
    """Index of the first entry of each row in the flattened arrays of a ladder, int64 (modules, 1)."""
    modules, width = ladder.cost.shape
    return np.arange(0, modules * width, width)[:, None]


def _lagrangian_solution(ladder: Ladder, weights: NDArray[np.float64], limit: float) -> Relaxed:
    """Solve the relaxation for `weights` (modules, K)."""
    rung, multiplier = _buy_steps(ladder, weights, limit)
    at = rung + row_starts(ladder)
    spent = ladder.cost.take(at).sum(axis=0)
    return Relaxed(rung, multiplier, spent, (ladder.prior.take(at) * weights).sum(axis=0))


def _buy_steps(
    ladder: Ladder, weights: NDArray[np.float64], limit: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Buy hull steps in falling order of weighted prior saved per cost until the budget runs out.

    Returns:
        The rungs reached, int64 (modules, K), and the prior saved per cost by the first step that no longer
        fits, float64 (K,).
    """
    points = len(ladder.hull_rung)
    value = (
        weights.astype(np.float32).take(ladder.hull_module, axis=0) * ladder.hull_slope[:, None]
    )  # (points, K)
    value[ladder.hull_start] = np.finfo(np.float32).max  # the cheapest rungs come first and are free
    keys, mask = _sortable_keys(value)
    falling = np.sort(keys, axis=1)[:, ::-1]
    order = (points - 1) - (falling & mask).T
    total = ladder.hull_cost.take(order)  # (points, K)
    np.cumsum(total, axis=0, out=total)
    bought = np.count_nonzero(total <= limit, axis=0)
    last = np.minimum(bought, points - 1)
    unaffordable = np.where(bought < points, falling[np.arange(len(falling)), last], -1).astype(np.int32)
    steps = np.add.reduceat(keys > unaffordable[:, None], ladder.hull_start, axis=1, dtype=np.int64)
    multiplier = np.maximum(unaffordable, 0).view(np.float32).astype(np.float64)
    return ladder.hull_rung.take(steps.T + (ladder.hull_start - 1)[:, None]), multiplier


def _sortable_keys(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], int]:
    """Pack `values` (n, K), at least 0, and their row numbers into integers that sort like the values.

    Sorting the integers is several times as fast as NumPy's argsort and argpartition, but loses precision:
    with 300 rows, values that differ by less than a factor of 1 + 6e-5 may be sorted by row instead, a later
    row before an earlier one.

    Returns:
        Keys, int32 (K, n), with n - 1 - row in the low bits, and the mask of these bits.
    """
    count = len(values)
    mask = (1 << (count - 1).bit_length()) - 1
    rows = np.arange(count - 1, -1, -1, dtype=np.int32)
    return (np.ascontiguousarray(values.T).view(np.int32) & ~mask) | rows, mask


def _improve(
    ladder: Ladder, weights: NDArray[np.float64], solution: Relaxed, limit: float
) -> NDArray[np.bool_]:
    """Make the best one or two changes in every problem, in place.

    Args:
        ladder: The problem.
        weights: float64 (modules, K).
        solution: The solutions to change.
        limit: Largest total cost, in units of the capacity.

    Returns:
        bool (K,), which solutions have changed.
    """
    changes = _best_priced_changes(ladder, weights, solution)
    first, second = _pairs(len(changes.cost))
    pair_cost = changes.cost.take(first, axis=0) + changes.cost.take(second, axis=0)  # (pairs, K)
    pair_prior = changes.prior.take(first, axis=0) + changes.prior.take(second, axis=0)
    possible = pair_cost <= limit - solution.spent
    possible &= changes.module.take(first, axis=0) != changes.module.take(second, axis=0)
    pair_prior = np.where(possible, pair_prior, np.inf)

    problems = np.arange(weights.shape[1])
    best = pair_prior.argmin(axis=0)
    gain = pair_prior[best, problems]
    changed: NDArray[np.bool_] = gain < 0
    for row in (first.take(best), second.take(best)):
        moved = problems[changed & (row > 0)]
        solution.rung[changes.module[row[moved], moved], moved] = changes.rung[row[moved], moved]
    solution.spent[changed] += pair_cost[best, problems][changed]
    solution.prior[changed] += gain[changed]
    return changed


def _best_priced_changes(ladder: Ladder, weights: NDArray[np.float64], solution: Relaxed) -> _Changes:
    """The moves with the smallest added weighted prior + multiplier·cost, after a row that changes nothing.

    Thanks to that row, a pair can also be a single change.
    """
    modules, problems = weights.shape
    moves = np.arange(0, ladder.move.size, ladder.cost.size)[:, None, None]
    at = moves + (solution.rung + row_starts(ladder))  # (moves, modules, K)
    cost = ladder.move_cost.take(at).reshape(-1, problems)
    prior = (ladder.move_prior.take(at) * weights).reshape(-1, problems)

    count = min(CANDIDATES, len(cost))
    lost = np.maximum(prior + solution.multiplier * cost, 0.0).astype(np.float32)
    keys, mask = _sortable_keys(lost)  # (K, moves · modules)
    chosen = len(cost) - 1 - (np.partition(keys, count - 1, axis=1)[:, :count].T & mask)  # (count, K)
    flat = chosen * problems + np.arange(problems)

    nothing = np.zeros((1, problems))
    no_module = np.full((1, problems), -1)
    return _Changes(
        module=np.concatenate([no_module, chosen % modules]),
        rung=np.concatenate([no_module, ladder.move.take(at.take(flat))]),
        cost=np.concatenate([nothing, cost.take(flat)]),
        prior=np.concatenate([nothing, prior.take(flat)]),
    )


@lru_cache(maxsize=8)
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.triu_indices(count, 1)

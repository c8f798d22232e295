"""The levels worth choosing, each module's from cheap to dear, and their lower convex hulls.

A weight scales a module's priors and changes neither the order nor the hull, so this is made once for a
problem with one cost and serves every weight vector.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH, Grid

PAD = 3  # columns on either side of a module's rungs that may be looked at and are never taken


class Ladder(NamedTuple):
    """All modules' rungs as arrays (modules, W), W the largest number of rungs plus PAD at both ends.

    Attributes:
        level: int64, the level that a rung stands for.
        units: int64, the cost on the integer grid.
        cost: float64, the cost in units of the capacity; OUT_OF_REACH outside the rungs.
        prior: float64, the prior above the module's smallest, in units of the widest range of any module.
        move: int64 (moves, modules, W), the columns to which one can move from a rung: by up to PAD rungs, or
            to the next point of the hull.
        move_cost: float64, the same shape: what the move adds to the cost.
        move_prior: float64, the same shape: what it adds to the prior.
        capacity: The largest allowed sum of `units`.
        hull_rung: int64 (points,), the column of every hull point, module by module.
        hull_module: int64 (points,), the module of every hull point.
        hull_start: int64 (modules,), a module's first point: its cheapest rung.
        hull_cost: float64 (points,), what the step from the point before adds to the cost; 0 for a first
            point.
        hull_slope: float32 (points,), the prior that this step saves per cost, falling within a module.
    """

    level: NDArray[np.int64]
    units: NDArray[np.int64]
    cost: NDArray[np.float64]
    prior: NDArray[np.float64]
    move: NDArray[np.int64]
    move_cost: NDArray[np.float64]
    move_prior: NDArray[np.float64]
    capacity: int
    hull_rung: NDArray[np.int64]
    hull_module: NDArray[np.int64]
    hull_start: NDArray[np.int64]
    hull_cost: NDArray[np.float64]
    hull_slope: NDArray[np.float32]


def build_ladder(
    useful: Sequence[NDArray[np.int64]],
    priors: Sequence[NDArray[np.float64]],
    prior_scale: float,
    grid: Grid,
) -> Ladder:
    """The ladder of the `useful` levels of each module; `priors` and `grid` have rows for all levels."""
    modules = len(useful)
    shape = (modules, max(map(len, useful)) + 2 * PAD)
    level = np.zeros(shape, dtype=np.int64)
    units = np.zeros(shape, dtype=np.int64)
    cost = np.full(shape, OUT_OF_REACH)
    prior = np.zeros(shape)
    hulls = []
    for module, levels in enumerate(useful):
        order = levels[np.lexsort((priors[module][levels], grid.costs[module][levels]))]
        rungs = slice(PAD, PAD + len(order))
        level[module, rungs] = order
        units[module, rungs] = grid.costs[module][order]
        cost[module, rungs] = units[module, rungs] / max(grid.capacity, 1)
        prior[module, rungs] = (priors[module][order] - priors[module].min()) / prior_scale
        hulls.append(_hull_columns(cost[module], prior[module], len(order)))
    hull_rung = np.concatenate(hulls)
    hull_module = np.repeat(np.arange(modules), list(map(len, hulls)))
    first = np.diff(hull_module, prepend=-1) > 0
    hull_cost = np.diff(cost[hull_module, hull_rung], prepend=0.0)
    saved = -np.diff(prior[hull_module, hull_rung], prepend=0.0)
    hull_cost[first] = 0.0
    saved[first] = 0.0
    move = np.stack([_moves(hull, shape[1]) for hull in hulls], axis=1)
    return Ladder(
        level=level,
        units=units,
        cost=cost,
        prior=prior,
        move=move,
        move_cost=np.take_along_axis(cost[None], move, axis=2) - cost,
        move_prior=np.take_along_axis(prior[None], move, axis=2) - prior,
        capacity=grid.capacity,
        hull_rung=hull_rung,
        hull_module=hull_module,
        hull_start=np.flatnonzero(first),
        hull_cost=hull_cost,
        hull_slope=(saved / np.where(first, 1.0, hull_cost)).astype(np.float32),
    )


def _moves(hull: list[int], width: int) -> NDArray[np.int64]:
    """Where one can go from each column, int64 (2 PAD + 2, width); column 0, out of reach, if nowhere.

    The next points of the hull are far only where a module jumps, as when all of it can be removed; without
    these jumps some problems stay 2 % above their optimum.
    """
    columns = np.arange(width)
    shifts = [columns + shift for shift in range(-PAD, PAD + 1) if shift]
    below = np.searchsorted(hull, columns, side="left") - 1
    above = np.searchsorted(hull, columns, side="right")
    down = np.where(below >= 0, np.take(hull, below, mode="clip"), 0)
    up = np.where(above < len(hull), np.take(hull, above, mode="clip"), 0)
    jumps = [np.where(np.abs(point - columns) > PAD, point, 0) for point in (down, up)]
    return np.stack([*shifts, *jumps]).clip(0, width - 1)


def _hull_columns(cost: NDArray[np.float64], prior: NDArray[np.float64], rungs: int) -> list[int]:
    """Columns of the lower hull by Andrew's monotone chain: costs strictly rise, priors strictly fall."""
    x, y = cost.tolist(), prior.tolist()
    kept = [PAD]
    for new in range(PAD + 1, PAD + rungs):
        if y[new] >= y[kept[-1]] or x[new] <= x[kept[-1]]:
            continue  # only in the last digits: a level that another one beats is not on the ladder
        while len(kept) > 1:
            before, last = kept[-2], kept[-1]
            if (y[before] - y[last]) * (x[new] - x[last]) > (y[last] - y[new]) * (x[last] - x[before]):
                break  # the slope falls at `last`: it is a corner
            kept.pop()
        kept.append(new)
    return kept

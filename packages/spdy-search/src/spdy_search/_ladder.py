"""The useful levels of each module, from cheap to expensive, with their lower convex hulls.

A weight multiplies the priors of a module and changes neither the order of its levels nor its hull. A problem
with one cost therefore builds its ladder once, for all weight vectors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH, Grid

PAD = 3  # columns on either side of a module's rungs: a move may point to one, but is then never made


class Ladder(NamedTuple):
    """Arrays (modules, W) in which each module has one column, or rung, for each useful level.

    W is the largest number of rungs plus PAD columns at both ends.

    Attributes:
        level: int64, level of a rung.
        units: int64, cost on the integer grid.
        cost: float64, cost in units of the capacity; OUT_OF_REACH outside the rungs.
        prior: float64, prior above the module's smallest prior, in units of `prior_scale`.
        move: int64 (moves, modules, W), target columns of the moves from a rung: by up to PAD rungs, or to
            the next hull point.
        move_cost: float64 (moves, modules, W), cost that a move adds.
        move_prior: float64 (moves, modules, W), prior that a move adds.
        capacity: Largest allowed sum of `units`.
        hull_rung: int64 (points,), column of each hull point, module by module.
        hull_module: int64 (points,), module of each hull point.
        hull_start: int64 (modules,), index of each module's first hull point, which is its cheapest rung.
        hull_cost: float64 (points,), cost that the step from the previous hull point adds; 0 for a first
            point.
        hull_slope: float32 (points,), prior that this step saves per cost; falling within a module.
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


class _Rungs(NamedTuple):
    """The first four arrays of a `Ladder`, (modules, W), and the number of rungs of each module."""

    level: NDArray[np.int64]
    units: NDArray[np.int64]
    cost: NDArray[np.float64]
    prior: NDArray[np.float64]
    counts: list[int]


def build_ladder(
    useful: Sequence[NDArray[np.int64]],
    priors: Sequence[NDArray[np.float64]],
    prior_scale: float,
    grid: Grid,
) -> Ladder:
    """Build the ladder of a problem with one cost.

    Args:
        useful: For each module, the levels worth choosing; at least one.
        priors: One float64 row per module, with all levels.
        prior_scale: Unit of the ladder's priors.
        grid: Integer costs of all levels.
    """
    level, units, cost, prior, counts = _sorted_rungs(useful, priors, prior_scale, grid)
    hulls = [_hull_columns(*rows) for rows in zip(cost, prior, counts, strict=True)]
    hull_rung = np.concatenate(hulls)
    hull_module = np.repeat(np.arange(len(hulls)), list(map(len, hulls)))
    first = np.diff(hull_module, prepend=-1) > 0
    hull_cost = np.where(first, 0.0, np.diff(cost[hull_module, hull_rung], prepend=0.0))
    saved = np.where(first, 0.0, -np.diff(prior[hull_module, hull_rung], prepend=0.0))
    move = np.stack([_moves(hull, cost.shape[1]) for hull in hulls], axis=1)
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


def _sorted_rungs(
    useful: Sequence[NDArray[np.int64]],
    priors: Sequence[NDArray[np.float64]],
    prior_scale: float,
    grid: Grid,
) -> _Rungs:
    """Sort each module's useful levels by cost and place them between PAD columns on either side."""
    counts = list(map(len, useful))
    shape = (len(useful), max(counts) + 2 * PAD)
    level = np.zeros(shape, dtype=np.int64)
    units = np.zeros(shape, dtype=np.int64)
    cost = np.full(shape, OUT_OF_REACH)
    prior = np.zeros(shape)
    for module, levels in enumerate(useful):
        order = levels[np.lexsort((priors[module][levels], grid.costs[module][levels]))]
        rungs = slice(PAD, PAD + len(order))
        level[module, rungs] = order
        units[module, rungs] = grid.costs[module][order]
        cost[module, rungs] = units[module, rungs] / max(grid.capacity, 1)
        prior[module, rungs] = (priors[module][order] - priors[module].min()) / prior_scale
    return _Rungs(level, units, cost, prior, counts)


def _moves(hull: list[int], width: int) -> NDArray[np.int64]:
    """Target columns of the moves from each column, int64 (2 PAD + 2, width).

    Column 0, which is out of reach, stands for a hull point that does not exist or is within PAD columns. A
    hull point is farther away only where a module's prior jumps, for example when the whole module can be
    removed. Without moves to these points some solutions stay 2 % above the optimum.
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
    """Columns of the lower convex hull of one module, by Andrew's monotone chain.

    Along the hull, costs strictly rise and priors strictly fall.
    """
    x, y = cost.tolist(), prior.tolist()
    kept = [PAD]
    for new in range(PAD + 1, PAD + rungs):
        if y[new] >= y[kept[-1]] or x[new] <= x[kept[-1]]:
            continue  # equal up to rounding: the ladder has no dominated levels
        while len(kept) > 1:
            before, last = kept[-2], kept[-1]
            if (y[before] - y[last]) * (x[new] - x[last]) > (y[last] - y[new]) * (x[last] - x[before]):
                break  # the slope falls at `last`, so it is a corner of the hull
            kept.pop()
        kept.append(new)
    return kept

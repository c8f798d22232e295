"""The optimum under one budget: a dynamic program over partial assignments, cut by a Lagrangian bound.

A state is a choice for the modules so far: its cost, on the integer grid, and its error. It is dropped if
another state costs no more and errs no more, or if it cannot end below the solution that `relax` found. For
the latter, with λ the price of cost, a module cannot contribute less than min over its levels of error +
λ·cost; so the sum over all modules, less λ·capacity, is a bound on the optimum, and every level of the
optimum exceeds its module's minimum by no more than what lies between bound and solution. That leaves a few
levels of some of the modules.
"""

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH
from ._ladder import Ladder
from ._relax import EDGE, relax

ROUNDING = 1e-12  # relative; bounds are widened by it


def solve_ladder(ladder: Ladder, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Columns of the ladder, int64 (modules,), that minimise Σ weight·prior with Σ units ≤ capacity.

    `weights` is (modules,), the largest of them 1.
    """
    modules = np.arange(len(weights))
    start = relax(ladder, weights[None], good_enough=0.0)
    if sum(ladder.units[modules, start.rung[:, 0]].tolist()) > ladder.capacity:
        start = relax(ladder, weights[None], limit=1 - EDGE, good_enough=0.0)
    price = float(start.multiplier[0])
    error = ladder.prior * weights[:, None]
    bounds = error + price * ladder.cost
    bounds[ladder.cost == OUT_OF_REACH] = np.inf
    floors = bounds.min(axis=1)
    found = float(error[modules, start.rung[:, 0]].sum())
    gap = max(found - (float(floors.sum()) - price), 0.0) + ROUNDING * (found + price)
    open_levels = bounds <= (floors + gap)[:, None]

    rung: NDArray[np.int64] = open_levels.argmax(axis=1)
    choices = open_levels.sum(axis=1)
    settled = choices == 1
    units = ladder.units[modules, rung][settled].sum(keepdims=True)
    errors = error[modules, rung][settled].sum(keepdims=True)
    bound = gap + float(floors[settled].sum())
    unit_price = price / max(ladder.capacity, 1)
    trail = []
    for module in sorted(modules[~settled].tolist(), key=choices.__getitem__):
        columns = np.flatnonzero(open_levels[module])
        bound += floors[module]
        states = len(units)
        all_units = (ladder.units[module, columns][:, None] + units).ravel()
        all_errors = (error[module, columns][:, None] + errors).ravel()
        kept = np.flatnonzero((all_errors + unit_price * all_units <= bound) & (all_units <= ladder.capacity))
        kept = kept[all_units[kept].argsort()]
        units, errors = all_units[kept], all_errors[kept]
        best_before = np.minimum.accumulate(errors)[:-1]
        undominated = np.concatenate([[True], errors[1:] < best_before])
        kept, units, errors = kept[undominated], units[undominated], errors[undominated]
        trail.append((module, columns, kept, states))

    state = int(errors.argmin())
    for module, columns, kept, states in reversed(trail):
        choice, state = divmod(int(kept[state]), states)
        rung[module] = columns[choice]
    return rung

"""The optimum under one budget: a dynamic program over partial assignments, cut by a Lagrangian bound.

A state is a choice for some modules: its cost, on the integer grid, and its error. It is dropped if another
state costs no more and errs no more, or if it cannot be part of anything better than what `relax` found. For
the latter, with λ the price of cost, a module cannot contribute less than the minimum over its levels of
error + λ·cost. The sum of these, less λ·capacity, is a bound on the optimum, and a level of the optimum
exceeds its module's minimum by no more than what lies between bound and solution. That leaves a few levels
of some modules. They are dealt into two halves, and the best pair of states is found by bisection.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH
from ._ladder import Ladder
from ._relax import EDGE, relax

ROUNDING = 1e-12  # relative; bounds are widened by it
MOST_STATES = 50_000


class _States(NamedTuple):
    """Undominated choices for some modules, from cheap to dear, and how they came about.

    Attributes:
        units: int64 (states,), rising.
        errors: float64 (states,), falling.
        trail: Per module: the module, its columns, and for each state (column's place)·(earlier states) +
            (earlier state); and the number of earlier states.
    """

    units: NDArray[np.int64]
    errors: NDArray[np.float64]
    trail: list[tuple[int, NDArray[np.int64], NDArray[np.int64], int]]


def solve_ladder(ladder: Ladder, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Columns of the ladder, int64 (modules,), that minimise Σ weight·prior with Σ units ≤ capacity.

    `weights` is (modules,), the widest weighted range of priors 1.
    """
    modules = np.arange(len(weights))
    start = relax(ladder, weights[None], good_enough=0.0)
    if sum(ladder.units[modules, start.rung[:, 0]].tolist()) > ladder.capacity:
        start = relax(ladder, weights[None], limit=1 - EDGE, good_enough=0.0)
    rung = start.rung[:, 0]
    price = float(start.multiplier[0])
    error = ladder.prior * weights[:, None]
    priced = error + price * ladder.cost
    priced[ladder.cost == OUT_OF_REACH] = np.inf
    floors = priced.min(axis=1)
    found = float(error[modules, rung].sum())
    gap = max(found - (float(floors.sum()) - price), 0.0) + ROUNDING * (found + price)

    excess = priced - floors[:, None]
    open_levels = excess <= gap
    choices = open_levels.sum(axis=1)
    settled = choices == 1  # what `relax` found is open, so that here it is the only one
    room = ladder.capacity - int(ladder.units[modules, rung][settled].sum())
    unsettled = sorted(modules[~settled].tolist(), key=choices.__getitem__)
    halves = [
        _states(ladder.units, error, excess, open_levels, half, room, gap)
        for half in (unsettled[::2], unsettled[1::2])
    ]

    left, right = halves
    partner = np.searchsorted(right.units, room - left.units, side="right") - 1
    total = np.where(partner >= 0, left.errors + right.errors[partner], np.inf)
    pair = int(total.argmin())
    best = rung.copy()
    for half, state in ((left, pair), (right, int(partner[pair]))):
        for module, columns, origin, states in reversed(half.trail):
            place, state = divmod(int(origin[state]), states)
            best[module] = columns[place]
    return best if total[pair] < error[modules, rung][~settled].sum() else rung


def _states(
    all_units: NDArray[np.int64],
    all_errors: NDArray[np.float64],
    all_excess: NDArray[np.float64],
    open_levels: NDArray[np.bool_],
    modules: list[int],
    room: int,
    gap: float,
) -> _States:
    """The states of some modules that cost at most `room` and exceed the minima by at most `gap`.

    More than MOST_STATES arise only where cost and error are in the same proportion for all levels of all
    modules. Then nearly every sum of costs can be had, and a sample evenly spread over the costs finds a
    pair within 1e-9 of the bound.
    """
    units, errors, excess = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1)
    trail = []
    for module in modules:
        columns = np.flatnonzero(open_levels[module])
        states = len(units)
        excess = (all_excess[module, columns][:, None] + excess).ravel()
        units = (all_units[module, columns][:, None] + units).ravel()
        origin = np.flatnonzero((excess <= gap) & (units <= room))
        origin = origin[units[origin].argsort()]
        errors = (all_errors[module, columns][:, None] + errors).ravel()[origin]
        undominated = np.concatenate([[True], errors[1:] < np.minimum.accumulate(errors)[:-1]])
        if np.count_nonzero(undominated) > MOST_STATES:
            undominated = np.flatnonzero(undominated)
            undominated = undominated[np.linspace(0, len(undominated) - 1, MOST_STATES).astype(np.int64)]
        origin, errors = origin[undominated], errors[undominated]
        units, excess = units[origin], excess[origin]
        trail.append((module, columns, origin, states))
    return _States(units, errors, trail)

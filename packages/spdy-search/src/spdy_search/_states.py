"""Partial assignments: every undominated choice of rungs for some modules, within bounds on cost and excess.

A rung is a useful level of a module (see `_ladder`). A state is a choice of rungs for some modules, with its
cost on the integer grid, its weighted prior, and its excess (see `_exact`). A state is dropped if another one
has no larger cost and no larger prior, or if its cost or its excess is too large.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST_STATES = 100  # kept at every step even if the effort is used up, so that solutions are still found


class Rungs(NamedTuple):
    """The rungs of every module.

    Attributes:
        units: int64 (modules, W), cost on the integer grid.
        prior: float64 (modules, W), weighted prior.
        excess: float64 (modules, W), prior + λ·cost above the module's floor.
    """

    units: NDArray[np.int64]
    prior: NDArray[np.float64]
    excess: NDArray[np.float64]


class _Extension(NamedTuple):
    """Origin of states: each extends an earlier state by a rung of one more module.

    Attributes:
        module: The added module.
        rungs: int64 (rungs,), its rungs with an excess within the limit.
        origin: int64 (states,), (index in `rungs`)·(earlier states) + (index of the earlier state).
        earlier_states: Number of earlier states.
    """

    module: int
    rungs: NDArray[np.int64]
    origin: NDArray[np.int64]
    earlier_states: int


class States(NamedTuple):
    """Undominated table for some modules, from cheap to expensive.

    Attributes:
        units: int64 (states,), total cost on the integer grid, rising.
        prior: float64 (states,), total weighted prior, falling.
        extensions: One per module, from which the rungs of a state are recovered.
        complete: Whether no state was left out for want of effort.
        effort: Number of states that were made, including those that were dropped.
    """

    units: NDArray[np.int64]
    prior: NDArray[np.float64]
    extensions: list[_Extension]
    complete: bool
    effort: int

    def rungs(self, state: int) -> dict[int, int]:
        """The rung of each module in a state."""
        chosen = {}
        for module, rungs, origin, earlier_states in reversed(self.extensions):
            place, state = divmod(int(origin[state]), earlier_states)
            chosen[module] = int(rungs[place])
        return chosen


def undominated_states(
    table: Rungs, modules: list[int], most_excess: float, room: int, effort: int
) -> States:
    """The undominated states of `modules` with cost at most `room` and excess at most `most_excess`.

    If there are so many that extending them by the remaining modules would take more than the effort that is
    left, the range of costs is divided evenly, and only the state with the smallest excess in each part is
    kept. The states are then not complete.

    Args:
        table: The rungs.
        modules: Modules to choose rungs for.
        most_excess: Largest total excess of a state.
        room: Largest total cost on the integer grid.
        effort: Number of states that may be made.
    """
    units, prior, excess = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1)
    extensions = []
    complete, used = True, 0
    rungs_left = int(np.count_nonzero(table.excess[modules] <= most_excess))
    for module in modules:
        rungs = np.flatnonzero(table.excess[module] <= most_excess)
        earlier_states = len(units)
        used += earlier_states * len(rungs)
        rungs_left -= len(rungs)
        excess = (table.excess[module, rungs][:, None] + excess).ravel()
        units = (table.units[module, rungs][:, None] + units).ravel()
        origin = np.flatnonzero((excess <= most_excess) & (units <= room))
        origin = origin[units[origin].argsort(kind="stable")]
        prior = (table.prior[module, rungs][:, None] + prior).ravel()[origin]
        kept = _falling(prior)
        most = max((effort - used) // max(rungs_left, 1), FEWEST_STATES)
        if len(kept) > most and rungs_left:
            kept = _thinned(kept, units[origin], excess[origin], most)
            complete = False
        origin, prior = origin[kept], prior[kept]
        units, excess = units[origin], excess[origin]
        extensions.append(_Extension(module, rungs, origin, earlier_states))
    return States(units, prior, extensions, complete, used)


def _thinned(
    kept: NDArray[np.int64], units: NDArray[np.int64], excess: NDArray[np.float64], most: int
) -> NDArray[np.int64]:
    """At most `most` of the states `kept`, whose costs rise: the smallest excess of each range of costs."""
    cost = units[kept] - units[kept[0]]
    part = np.minimum((cost / max(int(cost[-1]), 1) * most).astype(np.int64), most - 1)
    order = np.lexsort((excess[kept], part))
    first = np.diff(part[order], prepend=-1) > 0
    thinned: NDArray[np.int64] = kept[order[first]]
    return thinned


def _falling(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the values that are smaller than all values before them."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], values[1:] < np.minimum.accumulate(values)[:-1]]))

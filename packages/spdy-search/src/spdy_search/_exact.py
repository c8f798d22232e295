"""The optimum under one budget: a dynamic program over partial assignments, pruned by a Lagrangian bound.

A rung is a useful level of a module (see `_ladder`). A state is a choice of rungs for some modules, with its
cost on the integer grid and its weighted prior. A state is dropped if another state has no larger cost and no
larger prior, or if the bound shows that it cannot be part of a solution better than the one that `relax`
found.

The bound works as follows. Let λ be the price of cost. A module contributes at least its floor, the minimum
over its rungs of prior + λ·cost, so the sum of the floors minus λ·capacity is a lower bound on the optimum. A
rung of the optimum exceeds its module's floor by at most the gap between this bound and the known solution.
Usually, only some modules then have more than one rung left. These modules are split into two halves, each
with its own states, and the best pair of states is found by bisection.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH
from ._ladder import Ladder
from ._relax import EDGE, Relaxed, relax

ROUNDING = 1e-12  # relative rounding error by which the gap is widened
MOST_STATES = 50_000


class _Choices(NamedTuple):
    """The rungs that can be part of a solution better than the known one.

    Attributes:
        units: int64 (modules, W), cost on the integer grid.
        prior: float64 (modules, W), weighted prior.
        excess: float64 (modules, W), prior + λ·cost above the module's floor.
        gap: Largest total excess of a better solution.
        open: bool (modules, W), rungs whose excess is within the gap.
    """

    units: NDArray[np.int64]
    prior: NDArray[np.float64]
    excess: NDArray[np.float64]
    gap: float
    open: NDArray[np.bool_]


class _Extension(NamedTuple):
    """Origin of states: each extends an earlier state by a rung of one more module.

    Attributes:
        module: The added module.
        rungs: int64 (open rungs,), its open rungs.
        origin: int64 (states,), (index in `rungs`)·(earlier states) + (index of the earlier state).
        earlier_states: Number of earlier states.
    """

    module: int
    rungs: NDArray[np.int64]
    origin: NDArray[np.int64]
    earlier_states: int


class _States(NamedTuple):
    """Undominated choices for some modules, from cheap to expensive.

    Attributes:
        units: int64 (states,), total cost on the integer grid, rising.
        prior: float64 (states,), total weighted prior, falling.
        extensions: One per module, from which the rungs of a state are recovered.
    """

    units: NDArray[np.int64]
    prior: NDArray[np.float64]
    extensions: list[_Extension]

    def rungs(self, state: int) -> dict[int, int]:
        """The rung of each module in a state."""
        chosen = {}
        for module, rungs, origin, earlier_states in reversed(self.extensions):
            place, state = divmod(int(origin[state]), earlier_states)
            chosen[module] = int(rungs[place])
        return chosen


def solve_ladder(ladder: Ladder, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Minimise Σ weight·prior subject to Σ units ≤ capacity.

    Args:
        ladder: The problem; its capacity must be within reach.
        weights: float64 (modules,), scaled so that the widest weighted range of priors is 1.

    Returns:
        Columns of the ladder, int64 (modules,).
    """
    modules = np.arange(len(weights))
    known = _known_solution(ladder, weights)
    rung = known.rung[:, 0]
    choices = _open_choices(ladder, weights, rung, float(known.multiplier[0]))
    counts = choices.open.sum(axis=1)
    settled = counts == 1  # the known rung is always open, so here it is the only one
    unsettled = sorted(modules[~settled].tolist(), key=counts.__getitem__)
    room = ladder.capacity - int(ladder.units[modules, rung][settled].sum())
    left, right = (_undominated_states(choices, half, room) for half in (unsettled[::2], unsettled[1::2]))

    partner = np.searchsorted(right.units, room - left.units, side="right") - 1
    total = np.where(partner >= 0, left.prior + right.prior[partner], np.inf)
    pair = int(total.argmin())
    if not total[pair] < choices.prior[modules, rung][~settled].sum():
        return rung
    best = rung.copy()
    for module, column in (left.rungs(pair) | right.rungs(int(partner[pair]))).items():
        best[module] = column
    return best


def _known_solution(ladder: Ladder, weights: NDArray[np.float64]) -> Relaxed:
    """The solution of `relax`; if it exceeds the capacity, one that is certain not to."""
    modules = np.arange(len(weights))
    solution = relax(ladder, weights[None], good_enough=0.0)
    if sum(ladder.units[modules, solution.rung[:, 0]].tolist()) > ladder.capacity:
        return relax(ladder, weights[None], limit=1 - EDGE, good_enough=0.0)
    return solution


def _open_choices(
    ladder: Ladder, weights: NDArray[np.float64], rung: NDArray[np.int64], price: float
) -> _Choices:
    """The rungs that a solution better than `rung` (modules,) can use, by the bound at `price`."""
    prior = ladder.prior * weights[:, None]
    priced = prior + price * ladder.cost
    priced[ladder.cost == OUT_OF_REACH] = np.inf
    floors = priced.min(axis=1)
    known = float(prior[np.arange(len(rung)), rung].sum())
    gap = max(known - (float(floors.sum()) - price), 0.0) + ROUNDING * (known + price)
    excess = priced - floors[:, None]
    return _Choices(ladder.units, prior, excess, gap, excess <= gap)


def _undominated_states(choices: _Choices, modules: list[int], room: int) -> _States:
    """The undominated states of `modules` with cost at most `room` and an excess within the gap.

    More than MOST_STATES arise only where prior and cost are in the same proportion for all rungs of all
    modules. Nearly every total cost can then be reached, and a sample of the states, spread evenly, contains
    a pair within 1e-9 of the bound.
    """
    units, prior, excess = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1)
    extensions = []
    for module in modules:
        rungs = np.flatnonzero(choices.open[module])
        earlier_states = len(units)
        excess = (choices.excess[module, rungs][:, None] + excess).ravel()
        units = (choices.units[module, rungs][:, None] + units).ravel()
        origin = np.flatnonzero((excess <= choices.gap) & (units <= room))
        origin = origin[units[origin].argsort()]
        prior = (choices.prior[module, rungs][:, None] + prior).ravel()[origin]
        undominated = np.concatenate([[True], prior[1:] < np.minimum.accumulate(prior)[:-1]])
        kept = np.flatnonzero(undominated)
        if len(kept) > MOST_STATES:
            kept = kept[np.linspace(0, len(kept) - 1, MOST_STATES).astype(np.int64)]
        origin, prior = origin[kept], prior[kept]
        units, excess = units[origin], excess[origin]
        extensions.append(_Extension(module, rungs, origin, earlier_states))
    return _States(units, prior, extensions)

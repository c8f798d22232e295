"""The optimum under one budget, or a solution with a proven gap: the core of the problem first.

Let λ be the price of cost. A module contributes at least its floor, the minimum over its rungs of
prior + λ·cost, so the sum of the floors minus λ·capacity is a lower bound on the optimum. The excess of a
rung is what it adds to its module's floor. For every assignment

    prior = lower bound + excess + λ·unused capacity,

so an assignment whose prior exceeds the bound by at most g uses only rungs with an excess of at most g.
These rungs are the core for g. The core is solved by a dynamic program (see `_states`): the modules with more
than one rung in it are split into two halves, each with its own states, and the best pair of states is found
by bisection. If the best prior is within g of the bound, it is the optimum. Otherwise the optimum is more
than g above the bound, and g grows.

The solution that `relax` finds is usually several times as far above the bound as the optimum. Starting with
its gap as g takes up to thousands of times as long, since the number of states grows exponentially.

If the effort is used up before that, a few passes with the gap of the best solution as g improve it further.
They keep only some of the states, so that they prove nothing.

The price is that of the linear relaxation, where the bound is highest. Effort is counted in states and not in
seconds, so that the result does not depend on the machine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH
from ._ladder import Ladder
from ._relax import EDGE, relax
from ._states import Rungs, undominated_states

ROUNDING = 1e-12  # relative rounding error by which the gap is widened
FIRST_RUNGS = 16  # rungs of the first core beyond one for each module
SMALLEST_CORE = 1e-3  # first g, relative to the gap of the known solution, at least
GROWTH = 1.5  # of g between two cores
LAST_PASSES = 4  # incomplete ones, which only improve the solution; they have half of the effort
ENOUGH_PROGRESS = 0.8  # largest ratio of the gaps after and before a pass for another one to follow


class LadderSolution(NamedTuple):
    """A solution of a ladder.

    Attributes:
        rung: int64 (modules,), columns of the ladder.
        bound: Lower bound on the optimum of Σ weight·prior, in units of the ladder.
        exact: Whether the solution is optimal.
    """

    rung: NDArray[np.int64]
    bound: float
    exact: bool


class _Best:
    """The best assignment so far, and how far its prior is above the lower bound."""

    def __init__(self, prior: NDArray[np.float64], bound: float, price: float) -> None:
        self._prior, self._bound, self._price = prior, bound, price
        self.prior = np.inf
        self.gap = np.inf

    def offer(self, rung: NDArray[np.int64]) -> None:
        """Keep `rung` (modules,) if it is better."""
        prior = float(self._prior[np.arange(len(rung)), rung].sum())
        if prior < self.prior:
            self.rung, self.prior = rung, prior
            self.gap = max(prior - self._bound, 0.0) + self.rounding

    @property
    def rounding(self) -> float:
        """Largest rounding error of a sum of priors and priced costs."""
        return ROUNDING * (self.prior + self._price)


def solve_ladder(ladder: Ladder, weights: NDArray[np.float64], effort: int) -> LadderSolution:
    """Minimise Σ weight·prior subject to Σ units ≤ capacity.

    Args:
        ladder: The problem; its capacity must be within reach.
        weights: float64 (modules,), scaled so that the widest weighted range of priors is 1.
        effort: Number of states that may be made.
    """
    prior = ladder.prior * weights[:, None]
    price = _relaxed_price(ladder, prior)
    priced = prior + price * ladder.cost
    priced[ladder.cost == OUT_OF_REACH] = np.inf
    floors = priced.min(axis=1)
    bound = float(floors.sum()) - price
    excess = priced - floors[:, None]
    best = _Best(prior, bound, price)
    best.offer(_known_rungs(ladder, weights))
    rungs = Rungs(ladder.units, prior, excess)
    core, proven, left = _first_core(excess, best.gap), 0.0, effort // 2
    while True:
        core = min(core, best.gap)
        complete, used = _solve_core(rungs, core, ladder.capacity, left, best)
        if not complete:
            break
        if best.gap <= core:
            return LadderSolution(best.rung, best.prior, True)
        proven = max(core - best.rounding, 0.0)
        core *= GROWTH
        left -= used
    for _ in range(LAST_PASSES):
        before = best.gap
        _solve_core(rungs, best.gap, ladder.capacity, effort // (2 * LAST_PASSES), best)
        if best.gap > ENOUGH_PROGRESS * before:
            break
    # A solution without any gap is optimal, however it was found.
    return LadderSolution(best.rung, bound + proven, best.gap <= best.rounding)


def _relaxed_price(ladder: Ladder, prior: NDArray[np.float64]) -> float:
    """The price of cost in the linear relaxation: prior saved per cost by the first hull step over budget."""
    inner = np.ones(len(ladder.hull_rung), dtype=bool)
    inner[ladder.hull_start] = False  # the cheapest rungs are free
    saved = -np.diff(prior[ladder.hull_module, ladder.hull_rung], prepend=0.0)[inner]
    cost = ladder.hull_cost[inner]
    slope = saved / cost
    order = np.argsort(-slope, kind="stable")
    last = int(np.searchsorted(np.cumsum(cost[order]), 1.0, side="right"))
    return float(slope[order[last]]) if last < len(order) else 0.0


def _known_rungs(ladder: Ladder, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """The solution of `relax`; if it exceeds the capacity, one that is certain not to."""
    modules = np.arange(len(weights))
    rung = relax(ladder, weights[None], good_enough=0.0).rung[:, 0]
    if sum(ladder.units[modules, rung].tolist()) > ladder.capacity:
        rung = relax(ladder, weights[None], limit=1 - EDGE, good_enough=0.0).rung[:, 0]
    return rung


def _first_core(excess: NDArray[np.float64], gap: float) -> float:
    """A first g, with FIRST_RUNGS rungs in its core beyond one for each module, if that is not too small."""
    count = len(excess) + FIRST_RUNGS
    within = np.sort(excess[excess <= gap])
    return max(float(within[count]), SMALLEST_CORE * gap) if count < len(within) else gap


def _solve_core(rungs: Rungs, core: float, capacity: int, effort: int, best: _Best) -> tuple[bool, int]:
    """Offer `best` the best assignment of the rungs with an excess of at most `core`.

    Returns:
        Whether no assignment with a smaller prior and an excess of at most `core` was left out, and the
        effort used.
    """
    is_open = rungs.excess <= core
    counts = is_open.sum(axis=1)
    rung = rungs.excess.argmin(axis=1)  # of a module with a single open rung, that rung
    modules = np.arange(len(rung))
    settled = counts == 1
    unsettled = sorted(modules[~settled].tolist(), key=counts.__getitem__)
    room = capacity - sum(rungs.units[modules, rung][settled].tolist())
    if room < 0:
        return True, 0
    left = undominated_states(rungs, unsettled[::2], core, room, effort // 2)
    right = undominated_states(rungs, unsettled[1::2], core, room, effort // 2)
    complete, used = left.complete and right.complete, left.effort + right.effort
    if len(left.units) and len(right.units):
        partner = np.searchsorted(right.units, room - left.units, side="right") - 1
        total = np.where(partner >= 0, left.prior + right.prior[partner], np.inf)
        pair = int(total.argmin())
        if partner[pair] >= 0:
            for module, column in (left.rungs(pair) | right.rungs(int(partner[pair]))).items():
                rung[module] = column
            best.offer(rung)
    return complete, used

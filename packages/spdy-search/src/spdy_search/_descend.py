"""Walk downhill from an assignment, within budget, under a harm that costs microseconds to evaluate."""

import math

import numpy as np
from numpy.typing import NDArray

from ._model import Harm, Terms
from ._problem import Levels, Problem
from ._relax import EDGE

MOST_STEPS = 60
PAIRED = 48  # changes of one module that are combined with each other


class Hillside:
    """The changes that can be made to assignments of a problem: a module by 1, 2, 4, … useful levels."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self._root = terms.root
        self._cost = problem.table.cost
        most = max(map(len, problem.useful))
        shifts = [sign * 2**power for power in range(most.bit_length()) for sign in (-1, 1)]
        modules, levels = terms.root.shape
        self._goal = np.zeros((len(shifts), modules, levels), dtype=np.int64)  # the level after a shift
        for module, useful in enumerate(problem.useful):
            place = np.searchsorted(useful, np.arange(levels))
            for goal, shift in zip(self._goal, shifts, strict=True):
                goal[module] = useful[(place + shift).clip(0, len(useful) - 1)]

    def descend(self, harm: Harm, start: Levels) -> list[Levels]:
        """The assignments on the way down from `start` (modules,), without it; the last is a local minimum.

        Each step makes the best change of one or two modules, out of those that lose least when a unit of
        cost is worth what lies between the best purchase and the best sale.
        """
        levels = start.copy()
        modules = np.arange(len(levels))
        trail: list[Levels] = []
        while len(trail) < MOST_STEPS:
            goal = self._goal[:, modules, levels].ravel()  # (changes,)
            module = np.tile(modules, len(self._goal))
            root = self._root[modules, levels]
            spent = self._cost[:, modules, levels]  # (costs, modules)
            move = self._root[module, goal] - root[module]
            rise = harm.each[module, goal] - harm.each[module, levels[module]]
            rise += move * (harm.pairs @ root)[module]
            cost = self._cost[:, module, goal] - spent[:, module]  # (costs, changes)

            price = _price(rise, cost.sum(axis=0))
            lost = np.where(goal != levels[module], rise + price * cost.sum(axis=0), np.inf)
            kept = np.argsort(lost, kind="stable")[:PAIRED]
            # The last row is to change nothing, so that pairs with it are single changes.
            module, goal = np.append(module[kept], -1), np.append(goal[kept], -1)
            move, rise = np.append(move[kept], 0.0), np.append(rise[kept], 0.0)
            cost = np.append(cost[:, kept], np.zeros((len(cost), 1)), axis=1)

            pair = rise[:, None] + rise + harm.pairs[module[:, None], module] * (move[:, None] * move)
            possible = module[:, None] != module
            room = 1 - EDGE - spent.sum(axis=1)
            possible &= (cost[:, :, None] + cost[:, None, :] <= room[:, None, None]).all(axis=0)
            pair[~possible] = np.inf
            best = int(pair.argmin())
            if not pair.flat[best] < -EDGE:
                break
            for change in divmod(best, len(module)):
                if module[change] >= 0:
                    levels[module[change]] = goal[change]
            trail.append(levels.copy())
        return trail


def _price(rise: NDArray[np.float64], cost: NDArray[np.float64]) -> float:
    """The geometric mean of what the best purchase brings and the best sale loses per unit of cost, ≥ 0."""
    buys, sells = cost > 0, cost < 0
    gain = float((-rise[buys] / cost[buys]).max(initial=0.0))
    loss = float((-rise[sells] / cost[sells]).min(initial=math.inf))
    return math.sqrt(gain * loss) if 0 < loss < math.inf else 0.0

"""Local search within budget, under a harm that takes microseconds to evaluate."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._harm import Array, Harm, Terms
from ._problem import Levels, Problem
from ._relax import EDGE

MOST_STEPS = 60
MOST_CHANGES = 48  # single-module changes that are combined into pairs


class _Changes(NamedTuple):
    """Single-module changes of an assignment.

    Attributes:
        module: int64 (changes,), changed module; -1 for an empty change.
        level: int64 (changes,), new level of the module.
        root: float64 (changes,), added √p.
        rise: float64 (changes,), added harm.
        cost: float64 (costs, changes), added cost.
    """

    module: NDArray[np.int64]
    level: NDArray[np.int64]
    root: Array
    rise: Array
    cost: Array


class Neighbourhood:
    """The neighbours of assignments: one or two modules moved by 1, 2, 4, … useful levels."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self._root = terms.root
        self._cost = problem.table.cost
        most = max(map(len, problem.useful))
        shifts = [sign * 2**power for power in range(most.bit_length()) for sign in (-1, 1)]
        modules, levels = terms.root.shape
        self._shifted = np.zeros((len(shifts), modules, levels), dtype=np.int64)  # level after each shift
        for module, useful in enumerate(problem.useful):
            place = np.searchsorted(useful, np.arange(levels))
            for shifted, shift in zip(self._shifted, shifts, strict=True):
                shifted[module] = useful[(place + shift).clip(0, len(useful) - 1)]

    def descend(self, harm: Harm, start: Levels) -> list[Levels]:
        """Move to better neighbours until there is none, or for MOST_STEPS steps.

        Each step selects the single-module changes with the smallest added harm + price·cost. Of these,
        it makes the change or the pair of changes that stays within budget and reduces the harm most.

        Args:
            harm: The harm to reduce.
            start: int64 (modules,), an assignment within budget.

        Returns:
            The assignment after each step, int64 (modules,) each; empty if no neighbour of `start` is better.
        """
        levels = start
        modules = np.arange(len(levels))
        path: list[Levels] = []
        while len(path) < MOST_STEPS:
            changes = _best_priced(self._changes(harm, levels))
            room = 1 - EDGE - self._cost[:, modules, levels].sum(axis=1)
            pair = _best_pair(harm, changes, room)
            if not pair:
                break
            levels = levels.copy()
            for change in pair:
                if changes.module[change] >= 0:
                    levels[changes.module[change]] = changes.level[change]
            path.append(levels)
        return path

    def _changes(self, harm: Harm, levels: Levels) -> _Changes:
        """All single-module changes of `levels`."""
        modules = np.arange(len(levels))
        level = self._shifted[:, modules, levels].ravel()  # (shifts · modules,)
        module = np.tile(modules, len(self._shifted))
        moved = level != levels[module]  # a shift beyond the last useful level may change nothing
        module, level = module[moved], level[moved]
        root = self._root[modules, levels]
        added_root = self._root[module, level] - root[module]
        rise = harm.alone[module, level] - harm.alone[module, levels[module]]
        rise += added_root * (harm.interaction @ root)[module]
        cost = self._cost[:, module, level] - self._cost[:, module, levels[module]]
        return _Changes(module, level, added_root, rise, cost)


def _best_priced(changes: _Changes) -> _Changes:
    """The changes with the smallest added harm + price·cost, followed by an empty change.

    Thanks to the empty change, a pair can also be a single change.
    """
    cost = changes.cost.sum(axis=0)
    lost = changes.rise + _price(changes.rise, cost) * cost
    kept = np.argsort(lost, kind="stable")[:MOST_CHANGES]
    return _Changes(
        module=np.append(changes.module[kept], -1),
        level=np.append(changes.level[kept], -1),
        root=np.append(changes.root[kept], 0.0),
        rise=np.append(changes.rise[kept], 0.0),
        cost=np.append(changes.cost[:, kept], np.zeros((len(changes.cost), 1)), axis=1),
    )


def _best_pair(harm: Harm, changes: _Changes, room: Array) -> tuple[int, ...]:
    """Indices of the two changes that reduce the harm most and add at most `room` (costs,); () if none."""
    module, root, cost = changes.module, changes.root, changes.cost
    rise = changes.rise[:, None] + changes.rise
    rise += harm.interaction[module[:, None], module] * (root[:, None] * root)
    possible = module[:, None] != module
    possible &= (cost[:, :, None] + cost[:, None, :] <= room[:, None, None]).all(axis=0)
    rise[~possible] = np.inf
    best = int(rise.argmin())
    return divmod(best, len(module)) if rise.flat[best] < -EDGE else ()


def _price(rise: Array, cost: Array) -> float:
    """Price of cost in units of harm, at least 0.

    The price is the geometric mean of the most harm saved per added cost and the least harm added per saved
    cost.
    """
    adds, saves = cost > 0, cost < 0
    gain = float((-rise[adds] / cost[adds]).max(initial=0.0))
    loss = float((-rise[saves] / cost[saves]).min(initial=math.inf))
    return math.sqrt(gain * loss) if 0 < loss < math.inf else 0.0

"""All assignments under several budgets whose excess is small, and the best of them.

With one budget, the best partner of a partial assignment is found by bisection (see `_exact`). With several,
the pairs are enumerated: those whose excess is small are few. As in `_exact`, the levels are split by module
into two halves, and the partial assignments of each half are listed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 200_000  # pairs that are looked at in one NumPy operation


class Candidates(NamedTuple):
    """Levels that may be chosen, module by module.

    Attributes:
        starts: int64 (modules + 1,), index of each module's first level, and the number of levels.
        units: int64 (costs, levels), costs on the integer grids.
        excess: float64 (levels,), excess of each level.
    """

    starts: NDArray[np.int64]
    units: NDArray[np.int64]
    excess: NDArray[np.float64]


class _Half(NamedTuple):
    """Partial assignments of some modules, by rising excess.

    Attributes:
        units: int64 (costs, n), total costs.
        excess: float64 (n,), total excess.
        chosen: int32 (n, modules of this half), the level of each module, as an index of the candidates.
        complete: Whether none was left out for want of effort.
    """

    units: NDArray[np.int64]
    excess: NDArray[np.float64]
    chosen: NDArray[np.int32]
    complete: bool


class Found(NamedTuple):
    """Result of an enumeration.

    Attributes:
        chosen: int64 (modules,), indices of the candidates; None if no assignment is within the capacities.
        effort: Number of partial assignments and pairs that were looked at.
        complete: Whether no better assignment with an excess within the limit was left out.
    """

    chosen: NDArray[np.int64] | None
    effort: int
    complete: bool


def best_assignment(
    candidates: Candidates,
    capacities: NDArray[np.int64],
    prices: NDArray[np.float64],
    most_excess: float,
    effort: int,
) -> Found:
    """The best assignment whose prior exceeds the lower bound by at most `most_excess`.

    Args:
        candidates: Levels to choose from; every module needs one with an excess of 0.
        capacities: int64 (costs,), largest total costs on the integer grids.
        prices: float64 (costs,), prices of the units of the grids. The prior of an assignment above the lower
            bound is its excess plus the priced capacity that it leaves unused.
        most_excess: Largest total excess.
        effort: Number of partial assignments and pairs that may be looked at.
    """
    inside = candidates.excess <= most_excess
    choices = [
        first + np.flatnonzero(inside[first:last])
        for first, last in zip(candidates.starts[:-1], candidates.starts[1:], strict=True)
    ]
    settled = np.array([options[0] for options in choices if len(options) == 1], dtype=np.int64)
    room = capacities - candidates.units[:, settled].sum(axis=1)
    if (room < 0).any():
        return Found(None, 0, complete=True)
    unsettled = sorted((options for options in choices if len(options) > 1), key=len)
    left, right = (
        _half(candidates, half, room, most_excess, effort // 4) for half in (unsettled[::2], unsettled[1::2])
    )
    listed = len(left.excess) + len(right.excess)
    pair, looked_at, complete = _best_pair(left, right, room, prices, most_excess, effort - listed)
    complete = complete and left.complete and right.complete
    if pair is None:
        return Found(None, listed + looked_at, complete)
    chosen = np.sort(np.concatenate([settled, left.chosen[pair[0]], right.chosen[pair[1]]]))
    return Found(chosen, listed + looked_at, complete)


def _half(
    candidates: Candidates,
    choices: list[NDArray[np.int64]],
    room: NDArray[np.int64],
    most_excess: float,
    most: int,
) -> _Half:
    """The partial assignments of some modules within the room and the excess; at most `most` of them."""
    units, excess = np.zeros((len(room), 1), dtype=np.int64), np.zeros(1)
    chosen = np.zeros((1, 0), dtype=np.int32)
    complete = True
    for options in choices:
        excess = (excess[:, None] + candidates.excess[options]).ravel()
        kept = np.flatnonzero(excess <= most_excess)
        before, option = np.divmod(kept, len(options))
        units = units[:, before] + candidates.units[:, options[option]]
        within = (units <= room[:, None]).all(axis=0)
        kept, before, option, units = kept[within], before[within], option[within], units[:, within]
        order = excess[kept].argsort(kind="stable")
        if len(order) > most // len(options):
            order, complete = order[: max(most // len(options), 1)], False
        excess, units = excess[kept][order], units[:, order]
        added = options[option[order]].astype(np.int32)
        chosen = np.concatenate([chosen[before[order]], added[:, None]], axis=1)
    return _Half(units, excess, chosen, complete)


def _best_pair(
    left: _Half,
    right: _Half,
    room: NDArray[np.int64],
    prices: NDArray[np.float64],
    most_excess: float,
    effort: int,
) -> tuple[tuple[int, int] | None, int, bool]:
    """The pair with the smallest excess plus price of what is unused of the room.

    Returns:
        Indices of the pair, None if there is none; the number of pairs that were looked at; and whether no
        better pair was left out.
    """
    pair, smallest = None, np.inf
    looked_at, first = 0, 0
    while first < len(left.excess):
        # A better pair has an excess below what the best one has in total, so that the limit falls.
        partners = np.searchsorted(
            right.excess, min(most_excess, smallest) - left.excess[first:], side="right"
        )
        ends = np.cumsum(partners)
        count = max(int(np.searchsorted(ends, CHUNK)), 1)
        total = int(ends[min(count, len(ends)) - 1])
        if total == 0 and partners[0] == 0:
            break  # the excess of the following states is larger still
        if looked_at + total > effort:
            return pair, looked_at, False
        looked_at += total
        lefts = np.repeat(np.arange(first, first + len(partners[:count])), partners[:count])
        rights = np.arange(total) - np.repeat(ends[:count] - partners[:count], partners[:count])
        units = left.units[:, lefts] + right.units[:, rights]
        value = left.excess[lefts] + right.excess[rights] + prices @ (room[:, None] - units)
        value[(units > room[:, None]).any(axis=0)] = np.inf
        best = int(value.argmin())
        if value[best] < smallest:
            pair, smallest = (int(lefts[best]), int(rights[best])), float(value[best])
        first += len(partners[:count])
    return pair, looked_at, True

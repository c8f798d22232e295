"""A problem as rectangular arrays, for what works on several costs at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH, Grid


class Table(NamedTuple):
    """A problem as dense arrays, L the largest number of levels.

    Attributes:
        cost: float64 (costs, modules, L), above the module's smallest, in units of each capacity.
        prior: float64 (modules, L), above the module's smallest, in units of the widest range.
        useful: bool (modules, L), whether the level exists and is worth choosing.
    """

    cost: NDArray[np.float64]
    prior: NDArray[np.float64]
    useful: NDArray[np.bool_]


def dense_table(
    priors: Sequence[NDArray[np.float64]],
    prior_scale: float,
    useful: Sequence[NDArray[np.int64]],
    grids: Sequence[Grid],
) -> Table:
    """Rows made rectangular. Levels that cannot be within budget cost more than any capacity."""
    shape = (len(priors), max(map(len, priors)))
    cost = np.zeros((len(grids), *shape))
    prior = np.zeros(shape)
    is_useful = np.zeros(shape, dtype=bool)
    for module, (row, levels) in enumerate(zip(priors, useful, strict=True)):
        prior[module, : len(row)] = (row - row.min()) / prior_scale
        is_useful[module, levels] = True
        for kind, grid in enumerate(grids):
            fraction = grid.costs[module] / max(grid.capacity, 1)
            cost[kind, module, : len(row)] = np.where(grid.within[module], fraction, OUT_OF_REACH)
    return Table(cost, prior, is_useful)

"""A problem as rectangular arrays, for code that handles several costs at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._grid import OUT_OF_REACH, Grid


class Table(NamedTuple):
    """A problem as rectangular arrays; L is the largest number of levels of a module.

    Attributes:
        cost: float64 (costs, modules, L), cost above the module's smallest cost, in units of the capacity;
            OUT_OF_REACH for levels that cannot be within budget.
        prior: float64 (modules, L), prior above the module's smallest prior, in units of `prior_scale`.
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
    """Pad the rows of a problem to one length.

    Args:
        priors: One float64 row per module.
        prior_scale: Unit of the table's priors.
        useful: For each module, the levels worth choosing.
        grids: Integer costs, one grid for each kind of cost.
    """
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

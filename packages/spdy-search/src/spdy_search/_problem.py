"""The optimisation problem: one level per module, under one budget or several."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._grid import Grid, integer_costs
from ._ladder import Ladder, build_ladder
from ._table import Table, dense_table
from ._validate import Rows, finite_number, finite_rows

Levels: TypeAlias = NDArray[np.int64]

UNNAMED = "cost"  # name of the only cost when costs are given without names


class InfeasibleBudget(ValueError):
    """Raised when no assignment is within budget.

    Attributes:
        smallest: Smallest total cost that can be reached; with named costs a dictionary, in which each total
            is the smallest for that cost alone.
        budget: The requested budget, in the same form.
    """

    def __init__(self, message: str, smallest: Any = None, budget: Any = None) -> None:
        super().__init__(message)
        self.smallest = smallest
        self.budget = budget


class Problem:
    """Choose one level per module to minimise the total prior, with every total cost within its budget.

    An assignment is such a choice: one level for each module. By convention, level 0 of a module is its
    current size and later levels are smaller sizes. The solvers do not rely on an order: costs and priors may
    be any finite numbers. A level is never chosen if another level of its module dominates it, that is, has
    no larger cost and no larger prior. The search assumes that neighbouring levels are similar.

    Args:
        costs: One row per module with one number per level; rows may differ in length. Costs may be any
            additive quantity, such as seconds, bytes or money. To limit several costs at once, pass a
            dictionary from name to rows.
        priors: Rows of the same shape as the costs: estimated harm of each level.
        budget: Largest allowed total cost; with named costs a dictionary with the same names.

    Raises:
        ValueError: If shapes or names do not agree, or a value is not finite. A budget that cannot be met
            raises `InfeasibleBudget` later, in the solvers.

    Example:
        >>> problem = Problem(costs=[[3, 1], [5, 4, 1]], priors=[[0, 2], [0, 1, 6]], budget=7)
        >>> problem.cost([1, 0]), problem.fits([1, 0])
        (6.0, True)
    """

    def __init__(
        self,
        costs: Rows | Mapping[str, Rows],
        priors: Rows,
        budget: float | Mapping[str, float],
    ) -> None:
        self.priors = finite_rows("priors", priors)
        self.named = isinstance(costs, Mapping)
        if isinstance(costs, Mapping) != isinstance(budget, Mapping):
            raise ValueError(
                "costs and budget must both be plain or both be dictionaries with the same names; "
                f"got costs {type(costs).__name__} and budget {type(budget).__name__}"
            )
        by_name = costs if isinstance(costs, Mapping) else {UNNAMED: costs}
        budgets = budget if isinstance(budget, Mapping) else {UNNAMED: budget}
        if not by_name or set(by_name) != set(budgets):
            raise ValueError(
                f"every cost needs one budget: costs are {list(by_name)}, budgets are {list(budgets)}"
            )
        self.names = tuple(by_name)
        self.costs = {name: self._matching_rows(name, by_name[name]) for name in self.names}
        self.budgets = {name: finite_number(f"budget {name!r}", budgets[name]) for name in self.names}

    def _matching_rows(self, name: str, rows: Rows) -> tuple[NDArray[np.float64], ...]:
        matched = finite_rows(f"costs {name!r}", rows)
        if len(matched) != self.modules:
            raise ValueError(f"costs {name!r} have {len(matched)} rows, priors have {self.modules}")
        for module, (cost, prior) in enumerate(zip(matched, self.priors, strict=True)):
            if len(cost) != len(prior):
                raise ValueError(f"module {module} has {len(cost)} costs {name!r} but {len(prior)} priors")
        return matched

    def __repr__(self) -> str:
        budgets = ", ".join(f"{name} ≤ {budget:g}" for name, budget in self.budgets.items())
        levels = f"{min(self.level_counts)} to {max(self.level_counts)} levels"
        return f"Problem({self.modules} modules, {levels}, {budgets})"

    @property
    def modules(self) -> int:
        """Number of modules."""
        return len(self.priors)

    @cached_property
    def level_counts(self) -> NDArray[np.int64]:
        """Number of levels of each module, int64 (modules,)."""
        return np.array([len(row) for row in self.priors], dtype=np.int64)

    @property
    def budget(self) -> float | dict[str, float]:
        """The budget, in the form in which it was given."""
        return self._plain(self.budgets)

    @cached_property
    def smallest_cost(self) -> float | dict[str, float]:
        """Smallest total cost that can be reached; with named costs a dictionary of separate minima."""
        return self._plain(
            {name: math.fsum(float(row.min()) for row in self.costs[name]) for name in self.names}
        )

    def cost(self, levels: ArrayLike) -> float | dict[str, float]:
        """Total cost of an assignment, added by `math.fsum`; a dictionary if the costs are named."""
        return self._plain(self.totals(self.checked(levels)))

    def prior(self, levels: ArrayLike, weights: ArrayLike | None = None) -> float:
        """Total (weighted) prior of an assignment, added by `math.fsum`."""
        chosen = self.checked(levels)
        weight = self.checked_weights(weights)
        return math.fsum(
            float(w * row[level]) for w, row, level in zip(weight, self.priors, chosen, strict=True)
        )

    def fits(self, levels: ArrayLike) -> bool:
        """Whether every total cost of the assignment is within its budget."""
        totals = self.totals(self.checked(levels))
        return all(totals[name] <= self.budgets[name] for name in self.names)

    def with_budget(self, budget: float | Mapping[str, float]) -> "Problem":
        """A problem with these costs and priors and another budget."""
        return Problem(self.costs if self.named else self.costs[UNNAMED], self.priors, budget)

    def totals(self, levels: Levels) -> dict[str, float]:
        """Total costs by name, without checking `levels`, for internal callers."""
        chosen = levels.tolist()
        return {
            name: math.fsum([row[level] for row, level in zip(rows, chosen, strict=True)])
            for name, rows in self._cost_lists.items()
        }

    def checked(self, levels: ArrayLike) -> Levels:
        """Convert `levels` to int64 (modules,).

        Raises:
            ValueError: If the length is wrong or a level does not exist.
        """
        try:
            chosen = np.asarray(levels)
        except ValueError:  # rows of different lengths
            raise ValueError("an assignment must be a row of levels, one for each module") from None
        if chosen.shape != (self.modules,):
            raise ValueError(
                f"an assignment needs one level for each of {self.modules} modules; got shape {chosen.shape}"
            )
        if chosen.dtype.kind not in "iu":
            raise ValueError(f"levels must be integers; got {chosen.dtype}")
        wrong = np.flatnonzero((chosen < 0) | (chosen >= self.level_counts))
        if wrong.size:
            module = int(wrong[0])
            last = self.level_counts[module] - 1
            raise ValueError(f"module {module} has levels 0 to {last}; got {chosen[module]}")
        return chosen.astype(np.int64)

    def checked_weights(self, weights: ArrayLike | None, batch: bool = False) -> NDArray[np.float64]:
        """Convert `weights` to float64 (modules,), or (K, modules) for a batch; None means all ones.

        Raises:
            ValueError: If the shape is wrong or a weight is negative or not finite.
        """
        if weights is None:
            return np.ones((1, self.modules) if batch else self.modules)
        try:
            array = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("weights must be numbers that a float can hold, one row per problem") from None
        shape = "(K, modules)" if batch else "(modules,)"
        if array.ndim != 1 + batch or array.shape[-1] != self.modules:
            raise ValueError(f"weights must be {shape} for {self.modules} modules; got shape {array.shape}")
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise ValueError("weights must be finite and at least 0")
        return array

    def require_reachable(self) -> None:
        """Raise `InfeasibleBudget` if a budget is below the sum of the modules' smallest costs."""
        for name, budget in self.budgets.items():
            smallest = math.fsum(float(row.min()) for row in self.costs[name])
            if smallest > budget:
                raise self.infeasible(
                    f"{self._label(name)} budget {budget:.6g} cannot be reached: "
                    f"the smallest total is {smallest:.6g}"
                )

    def infeasible(self, message: str) -> InfeasibleBudget:
        """Create the exception for this problem, with its smallest cost and its budget."""
        return InfeasibleBudget(message, self.smallest_cost, self.budget)

    @cached_property
    def grids(self) -> dict[str, Grid]:
        """Integer costs by name, which the solvers add and compare exactly."""
        return {name: integer_costs(self.costs[name], self.budgets[name]) for name in self.names}

    @cached_property
    def useful(self) -> tuple[NDArray[np.int64], ...]:
        """For each module, the undominated levels that can be within budget, ascending."""
        return tuple(self._useful(module) for module in range(self.modules))

    def _useful(self, module: int) -> NDArray[np.int64]:
        criteria = np.stack([self.priors[module], *(rows[module] for rows in self.costs.values())])
        # [a, b]: a is at least as good as b
        no_worse = (criteria[:, :, None] <= criteria[:, None, :]).all(axis=0)
        # Of equal levels, the first dominates the others.
        earlier = np.tri(no_worse.shape[0], k=-1, dtype=bool).T
        dominated = no_worse & (~no_worse.T | earlier)
        within = np.all([grid.within[module] for grid in self.grids.values()], axis=0)
        return np.flatnonzero(~dominated.any(axis=0) & within)

    @cached_property
    def prior_scale(self) -> float:
        """Unit of prior in the solvers: the widest range of priors in any module, or 1 if it is 0."""
        return max(float(np.ptp(row)) for row in self.priors) or 1.0

    @cached_property
    def prior_ranges(self) -> NDArray[np.float64]:
        """Range of each module's priors in units of `prior_scale`, float64 (modules,)."""
        return np.array([np.ptp(row) for row in self.priors]) / self.prior_scale

    @cached_property
    def ladder(self) -> Ladder:
        """Sorted levels and hulls for the solvers with one cost; the budget must be within reach."""
        (grid,) = self.grids.values()
        return build_ladder(self.useful, self.priors, self.prior_scale, grid)

    @cached_property
    def table(self) -> Table:
        """The problem as rectangular arrays, for code that handles several costs."""
        return dense_table(self.priors, self.prior_scale, self.useful, tuple(self.grids.values()))

    @cached_property
    def _cost_lists(self) -> dict[str, list[list[float]]]:
        return {name: [row.tolist() for row in rows] for name, rows in self.costs.items()}

    def _label(self, name: str) -> str:
        return name if self.named else "the"

    def _plain(self, by_name: dict[str, float]) -> float | dict[str, float]:
        return by_name if self.named else by_name[UNNAMED]

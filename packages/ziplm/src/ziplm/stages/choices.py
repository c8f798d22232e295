"""What the search may choose from: the levels of all branches, their costs and their priors."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from latency_profiler import LatencyTable
from numpy.typing import NDArray
from spdy_search import InfeasibleBudget, Problem, solve

from ziplm.architectures.base import Branch
from ziplm.errors import UnreachableTarget, UsageError
from ziplm.options.targets import Target
from ziplm.stages.levels import BranchLevels

Levels = Sequence[int] | NDArray[np.int64]
"""One level for each branch."""
Priors = dict[str, torch.Tensor]
"""Priors of a branch by name, each float64 (groups + 1,)."""
SECONDS = "seconds"


class Choices:
    """The levels of all branches, what they cost, and their estimated harm.

    Args:
        levels: levels of each branch.
        priors: priors by branch name.
        table: latency table.
        costs: other costs than seconds, by name; one row for each branch.
        uniform: whether all branches of a kind must have the same size.
        dense: branches of the dense model, to which speedups refer; None for branches with the largest sizes
            of the table.
    """

    def __init__(
        self,
        levels: Sequence[BranchLevels],
        priors: Mapping[str, Priors],
        table: LatencyTable,
        costs: Mapping[str, list[list[float]]] | None = None,
        uniform: bool = False,
        dense: Sequence[Branch] | None = None,
    ) -> None:
        self.levels = levels
        self._dense = dense
        self.table = table
        self.costs = {SECONDS: [own.seconds(table) for own in levels], **(costs or {})}
        self.uniform = uniform
        self._priors = priors

    @property
    def dense_seconds(self) -> float:
        """Time of the dense model according to the table."""
        if self._dense is not None:
            return self.table.fixed + sum(self.table.curves[b.kind](b.groups) for b in self._dense)
        curves = [self.table.curves[own.branch.kind] for own in self.levels]
        return self.table.fixed + sum(curve(max(curve.sizes)) for curve in curves)

    @property
    def smallest_seconds(self) -> float:
        """Time with every branch at its cheapest level."""
        return self.table.fixed + sum(min(row) for row in self.costs[SECONDS])

    @property
    def largest_speedup(self) -> float:
        """Speedup with every branch at its cheapest level."""
        return self.dense_seconds / self.smallest_seconds

    def budgets(self, target: Target, dense: "Choices | None" = None) -> dict[str, float]:
        """Return the budgets of a target, by name of the cost.

        Args:
            target: the target; the speed of a "recover" target is not known in advance.
            dense: choices of the dense model, to which sparsity refers; None if these are the dense model's.
        """
        budgets = {}
        if target.kind == "latency":
            budgets[SECONDS] = target.value / 1e3
        elif target.kind == "speedup":
            budgets[SECONDS] = self.dense_seconds / target.value
        whole = sum(max(row) for row in (dense or self).costs["params"])
        for name, value in target.limits:
            cost, budget = ("params", (1 - value) * whole) if name == "sparsity" else (name, value)
            budgets[cost] = min(budget, budgets.get(cost, budget))
        return budgets

    def total(self, cost: str, levels: Levels) -> float:
        """Return the summed cost of all branches."""
        return math.fsum(row[int(level)] for row, level in zip(self.costs[cost], levels, strict=True))

    def problem(self, prior: str, budgets: Mapping[str, float]) -> Problem:
        """Return the problem of choosing levels within budgets by one of the priors.

        The budget of the seconds is for the whole model, the others are for its layers.
        """
        for own in self.levels:
            if own.branch.groups and prior not in (known := self._priors[own.branch.name]):
                raise UsageError(
                    f"prior {prior} is not known here", f"use auto, or one of {', '.join(sorted(known))}"
                )
        rows = [
            [
                float(self._priors[own.branch.name][prior][own.removed(level)])
                for level in range(len(own.sizes))
            ]
            if own.branch.groups
            else [0.0]
            for own in self.levels
        ]
        for_branches = {
            name: value - (self.table.fixed if name == SECONDS else 0.0) for name, value in budgets.items()
        }
        return Problem({name: self.costs[name] for name in budgets}, rows, for_branches)

    def solve(self, prior: str, budgets: Mapping[str, float]) -> NDArray[np.int64]:
        """Return the levels with the smallest summed prior within all budgets."""
        problem = self.problem(prior, budgets)
        if self.uniform:
            return best_uniform(problem, self.levels)
        return solve(problem)

    def removed(self, levels: Levels) -> list[int]:
        """Return the number of groups that each branch loses."""
        return [own.removed(int(level)) for own, level in zip(self.levels, levels, strict=True)]

    def sizes(self, levels: Levels) -> dict[str, list[int]]:
        """Return the groups left, layer by layer, for each kind of branch."""
        left: dict[str, list[int]] = {}
        for own, level in zip(self.levels, levels, strict=True):
            left.setdefault(own.branch.kind, []).append(own.sizes[int(level)])
        return left

    def require_reachable(self, budgets: Mapping[str, float], asked: str) -> None:
        """Raise UnreachableTarget, with the best that can be reached, if budgets cannot be met."""
        seconds = budgets.get(SECONDS, math.inf)
        if seconds < self.smallest_seconds:
            fixed = self.table.fixed / self.dense_seconds
            most = math.floor(100 * self.largest_speedup) / 100
            raise UnreachableTarget(
                f"{asked} cannot be reached: with everything removed the model is {most:.2f}x as fast "
                f"({self.smallest_seconds * 1e3:.3g} ms)",
                f"{fixed:.0%} of its time is outside of what can be pruned: ask for at most {most:.2f}x",
            )
        if seconds > self.dense_seconds * (1 + 1e-9) and math.isfinite(seconds):
            raise UsageError(f"{asked} is slower than the dense model", "ask for a speedup above 1")
        for name, budget in budgets.items():
            smallest = sum(min(row) for row in self.costs[name])
            if name != SECONDS and budget < smallest:
                raise UnreachableTarget(
                    f"{asked} cannot be reached: with everything removed {smallest:.4g} {name} are left",
                    "ask for less",
                )


def best_uniform(problem: Problem, levels: Sequence[BranchLevels]) -> NDArray[np.int64]:
    """Return the best assignment in which all branches of a kind have the same size."""
    shared: dict[str, set[int]] = {}
    for own in levels:
        kind = own.branch.kind
        shared[kind] = shared.get(kind, set(own.sizes)) & set(own.sizes)
    best, smallest = None, math.inf
    for combination in itertools.product(*(sorted(sizes, reverse=True) for sizes in shared.values())):
        by_kind = dict(zip(shared, combination, strict=True))
        assignment = np.array([own.sizes.index(by_kind[own.branch.kind]) for own in levels])
        harm = math.fsum(float(row[level]) for row, level in zip(problem.priors, assignment, strict=True))
        if harm < smallest and problem.fits(assignment):
            best, smallest = assignment, harm
    if best is None:
        raise InfeasibleBudget("no size that all layers share is within the budget")
    return best

"""The choices of the search: the levels of all branches, their costs and their priors."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from latency_profiler import LatencyTable
from numpy.typing import NDArray
from spdy_search import InfeasibleBudget, Problem, solve

from ziplm.architectures.base import Branch, Size
from ziplm.errors import UnreachableTarget, UsageError
from ziplm.options.targets import Target
from ziplm.stages.levels import BranchLevels

Levels = Sequence[int] | NDArray[np.int64]
"""One level for each branch."""
Priors = dict[str, torch.Tensor]
"""Priors of a branch by name, each float64 (groups + 1,), or (widths, groups + 1); see `BranchLevels`."""
ReportedSize = int | list[int]
"""A size as reports have it: the number of groups, or the number of heads and their width."""
SECONDS = "seconds"


class Choices:
    """The levels of all branches, what they cost, and their estimated harm.

    Args:
        levels: levels of each branch.
        priors: priors by branch name.
        table: latency table.
        costs: other costs than seconds, by name; one row for each branch.
        uniform: whether all branches of a kind must have the same size.
        dense_branches: branches of the dense model, to which speedups refer; None for branches with the
            largest sizes of the table.
        quantized_speedup: how much faster the dense model becomes if it is only quantised, where the table is
            that of quantised models. Speedups refer to the dense model as it is.
    """

    def __init__(
        self,
        levels: Sequence[BranchLevels],
        priors: Mapping[str, Priors],
        table: LatencyTable,
        costs: Mapping[str, list[list[float]]] | None = None,
        uniform: bool = False,
        dense_branches: Sequence[Branch] | None = None,
        quantized_speedup: float = 1.0,
    ) -> None:
        self.levels = levels
        self._dense_branches = dense_branches
        self.table = table
        self.quantized_speedup = quantized_speedup
        self.costs = {SECONDS: [branch_levels.seconds(table) for branch_levels in levels], **(costs or {})}
        self.uniform = uniform
        self._priors = priors

    @property
    def dense_seconds(self) -> float:
        """Time of the dense model, to which speedups refer, on the scale of the table."""
        return self.quantized_speedup * self.unpruned_seconds

    @property
    def unpruned_seconds(self) -> float:
        """Time of the model with the dense model's sizes according to the table."""
        if self._dense_branches is not None:
            dense = zip(self.levels, self._dense_branches, strict=True)
            return self.table.fixed + sum(own.seconds_of(self.table, branch.size) for own, branch in dense)
        curves = [self.table.curves[branch_levels.branch.kind] for branch_levels in self.levels]
        return self.table.fixed + sum(curve(max(curve.sizes)) for curve in curves)

    @property
    def smallest_seconds(self) -> float:
        """Time with every branch at its cheapest level."""
        return self.table.fixed + sum(min(row) for row in self.costs[SECONDS])

    @property
    def largest_speedup(self) -> float:
        """Speedup with every branch at its cheapest level."""
        return self.dense_seconds / self.smallest_seconds

    def reach_lines(self) -> list[str]:
        """Describe the time of the dense model and what can be reached, in two lines."""
        most = self.largest_speedup
        return [
            f"dense model: {1e3 * self.dense_seconds:.3g} ms",
            f"reachable: up to {most:.1f}x; with everything removed, {1 / most:.0%} of the time would stay",
        ]

    def budgets(self, target: Target, dense_choices: "Choices | None" = None) -> dict[str, float]:
        """Return the budgets of a target, by name of the cost.

        Args:
            target: the target; the speed of a "recover" target is not known in advance.
            dense_choices: choices of the dense model, to which sparsity refers; None if these are its own.
        """
        budgets = {}
        if target.kind == "latency":
            budgets[SECONDS] = target.value / 1e3
        elif target.kind == "speedup":
            budgets[SECONDS] = self.dense_seconds / target.value
        dense_parameters = sum(max(row) for row in (dense_choices or self).costs["params"])
        for name, value in target.limits:
            cost, budget = ("params", (1 - value) * dense_parameters) if name == "sparsity" else (name, value)
            budgets[cost] = min(budget, budgets.get(cost, budget))
        return budgets

    def slowest_first(self, targets: Sequence[Target]) -> list[Target]:
        """Return targets in the order of gradual runs; those with limits alone come before all others."""
        return sorted(targets, key=lambda target: -self.budgets(target).get(SECONDS, math.inf))

    def need_no_pruning(self, budgets: Mapping[str, float]) -> bool:
        """Return whether the current sizes are within all budgets, because quantisation alone is enough."""
        current = [0] * len(self.levels)
        return all(
            (self.seconds(current) if name == SECONDS else self.total(name, current)) <= budget
            for name, budget in budgets.items()
        )

    def total(self, cost: str, levels: Levels) -> float:
        """Return the summed cost of all branches."""
        return math.fsum(row[int(level)] for row, level in zip(self.costs[cost], levels, strict=True))

    def problem(self, prior: str, budgets: Mapping[str, float]) -> Problem:
        """Return the problem of choosing levels within budgets by one of the priors.

        The budget of seconds covers the whole model, the other budgets only its layers.
        """
        remaining = [branch_levels.branch for branch_levels in self.levels if branch_levels.branch.groups]
        for branch in remaining:
            if prior not in (known := self._priors[branch.name]):
                raise UsageError(
                    f"prior {prior} is not known here", f"use auto, or one of {', '.join(sorted(known))}"
                )
        rows = [self._prior_of(prior, branch_levels) for branch_levels in self.levels]
        for_branches = {
            name: value - (self.table.fixed if name == SECONDS else 0.0) for name, value in budgets.items()
        }
        return Problem({name: self.costs[name] for name in budgets}, rows, for_branches)

    def _prior_of(self, prior: str, branch_levels: BranchLevels) -> list[float]:
        """Return the prior of each level of a branch; the single level of a removed branch does no harm."""
        if not branch_levels.branch.groups:
            return [0.0]
        harm = self._priors[branch_levels.branch.name][prior]
        return [branch_levels.harm(harm, size) for size in branch_levels.sizes]

    def solve(self, prior: str, budgets: Mapping[str, float]) -> NDArray[np.int64]:
        """Return the levels with the smallest summed prior within all budgets."""
        problem = self.problem(prior, budgets)
        if self.uniform:
            return best_uniform(problem, self.levels)
        return solve(problem)

    def chosen(self, levels: Levels) -> list[Size]:
        """Return the size of each branch."""
        pairs = zip(self.levels, levels, strict=True)
        return [branch_levels.sizes[int(level)] for branch_levels, level in pairs]

    def seconds(self, levels: Levels) -> float:
        """Return the time of the whole model according to the table."""
        return self.table.fixed + self.total(SECONDS, levels)

    def sizes(self, levels: Levels) -> dict[str, list[ReportedSize]]:
        """Return what is left of the attention and of the FFN of each layer, for a report.

        It is the number of groups; if heads may be narrower than in the dense model, it is a pair of their
        number and their width.
        """
        left: dict[str, list[ReportedSize]] = {}
        for branch_levels, size in zip(self.levels, self.chosen(levels), strict=True):
            part = branch_levels.branch.part
            left.setdefault(part, []).append(list(size) if part in self.narrowed_parts else size.groups)
        return left

    @property
    def narrowed_parts(self) -> set[str]:
        """The parts ("attention") in which heads may be narrower than in the dense model."""
        return {own.branch.part for own in self.levels if own.may_narrow}

    def require_reachable(self, budgets: Mapping[str, float], asked: str) -> None:
        """Raise UnreachableTarget, with the best that can be reached, if budgets cannot be met."""
        seconds = budgets.get(SECONDS, math.inf)
        if seconds < self.smallest_seconds:
            most = math.floor(100 * self.largest_speedup) / 100
            raise UnreachableTarget(
                f"{asked} cannot be reached: with everything removed, the model would still take "
                f"{self.smallest_seconds * 1e3:.3g} ms of {self.dense_seconds * 1e3:.3g} ms",
                f"ask for at most {most:.2f}x",
            )
        if seconds > self.dense_seconds * (1 + 1e-9) and math.isfinite(seconds):
            raise UsageError(
                f"{asked} is slower than the dense model",
                f"ask for less than {self.dense_seconds * 1e3:.3g} ms",
            )
        for name, budget in budgets.items():
            smallest = sum(min(row) for row in self.costs[name])
            if name != SECONDS and budget < smallest:
                raise UnreachableTarget(
                    f"{asked} cannot be reached: with everything removed {smallest:.4g} {name} are left",
                    self._smallest_limit(name, smallest),
                )

    def _smallest_limit(self, name: str, smallest: float) -> str:
        """Return the advice for a limit that cannot be met."""
        advice = f"give a limit of at least {math.ceil(smallest)} {name}"
        if name != "params":
            return advice
        sparsity = 1 - smallest / sum(max(row) for row in self.costs[name])
        return f"{advice}, or a sparsity of at most {math.floor(1e4 * sparsity) / 1e4:g}"


def best_uniform(problem: Problem, levels: Sequence[BranchLevels]) -> NDArray[np.int64]:
    """Return the best assignment in which all branches of a kind have the same size."""
    shared: dict[str, set[Size]] = {}
    for branch_levels in levels:
        kind, sizes = branch_levels.branch.kind, set(branch_levels.sizes)
        shared[kind] = shared.get(kind, sizes) & sizes
    best, smallest = None, math.inf
    for combination in itertools.product(*(sorted(common, reverse=True) for common in shared.values())):
        by_kind = dict(zip(shared, combination, strict=True))
        assignment = np.array([one.sizes.index(by_kind[one.branch.kind]) for one in levels])
        harm = math.fsum(float(row[level]) for row, level in zip(problem.priors, assignment, strict=True))
        if harm < smallest and problem.fits(assignment):
            best, smallest = assignment, harm
    if best is None:
        raise InfeasibleBudget("no size that all layers share is within the budget")
    return best

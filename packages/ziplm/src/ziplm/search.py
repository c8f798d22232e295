"""Stage 4, search: which size each module gets within the budget.

One exact solve with each prior; the best of those few by the real loss, on samples that the traces have not
seen; from there the direct search, kept only if it is better on a third part of the samples.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latency_profiler import LatencyTable
from numpy.typing import NDArray
from spdy_search import InfeasibleBudget, Problem, search, solve

from ziplm.adapters import Module
from ziplm.errors import BadRun, UnreachableTarget, UsageError
from ziplm.levels import ModuleLevels
from ziplm.prune import Priors

Levels = Sequence[int] | NDArray[np.int64]
SECONDS = "seconds"
Loss = Callable[[Sequence[int]], float]
"""From the groups removed from each module to a loss."""


@dataclass(frozen=True)
class Found:
    """What the search found.

    Attributes:
        levels: one for each module.
        prior: the one that led there.
        prior_losses: loss of each prior's own solution, on the samples of the search.
        start_loss: loss of the best of them on the third part of the samples.
        searched_loss: that of what the search made of it; None without a search.
        evaluations: losses that were computed on the samples of the search.
    """

    levels: tuple[int, ...]
    prior: str
    prior_losses: dict[str, float]
    start_loss: float
    searched_loss: float | None
    evaluations: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Found":
        """The inverse of `to_dict`."""
        return cls(**{**values, "levels": tuple(values["levels"])})


class Choices:
    """All that may be chosen: levels of modules, what they cost, and what they are expected to harm.

    Args:
        levels: of each module.
        priors: by name of the module and of the prior.
        table: what sizes take.
        costs: other costs than seconds by name, a row for each module.
        uniform: whether all modules of a kind must have the same size.
        dense: modules of the model that speedups refer to; None for the largest that the table knows.
    """

    def __init__(
        self,
        levels: Sequence[ModuleLevels],
        priors: Mapping[str, Priors],
        table: LatencyTable,
        costs: Mapping[str, list[list[float]]] | None = None,
        uniform: bool = False,
        dense: Sequence[Module] | None = None,
    ) -> None:
        self.levels = levels
        self._dense = dense
        self.table = table
        self.costs = {SECONDS: [module.seconds(table) for module in levels], **(costs or {})}
        self.uniform = uniform
        self._priors = priors

    @property
    def dense_seconds(self) -> float:
        """What the table says of the model that speedups refer to."""
        if self._dense is not None:
            return self.table.fixed + sum(self.table.curves[m.kind](m.groups) for m in self._dense)
        curves = [self.table.curves[module.module.kind] for module in self.levels]
        return self.table.fixed + sum(curve(max(curve.sizes)) for curve in curves)

    @property
    def smallest_seconds(self) -> float:
        """What is left when every module is at its cheapest."""
        return self.table.fixed + sum(min(row) for row in self.costs[SECONDS])

    @property
    def largest_speedup(self) -> float:
        """With everything removed."""
        return self.dense_seconds / self.smallest_seconds

    def total(self, cost: str, levels: Levels) -> float:
        """The summed cost of the modules."""
        return math.fsum(row[int(level)] for row, level in zip(self.costs[cost], levels, strict=True))

    def problem(self, prior: str, budgets: Mapping[str, float]) -> Problem:
        """Choose within budgets by name of the cost, by one of the priors.

        That of the seconds is for the whole model; those of the others are for its layers.
        """
        for m in self.levels:
            if m.module.groups and prior not in (known := self._priors[m.module.name]):
                raise UsageError(
                    f"prior {prior} is not known here", f"use auto, or one of {', '.join(sorted(known))}"
                )
        rows = [
            [float(self._priors[m.module.name][prior][m.removed(level)]) for level in range(len(m.sizes))]
            if m.module.groups
            else [0.0]
            for m in self.levels
        ]
        own = {
            name: value - (self.table.fixed if name == SECONDS else 0.0) for name, value in budgets.items()
        }
        return Problem({name: self.costs[name] for name in budgets}, rows, own)

    def solve(self, prior: str, budgets: Mapping[str, float]) -> NDArray[np.int64]:
        """The levels with the smallest summed prior within all budgets."""
        problem = self.problem(prior, budgets)
        if self.uniform:
            return best_uniform(problem, self.levels)
        return solve(problem)

    def removed(self, levels: Levels) -> list[int]:
        """Groups that each module loses."""
        return [module.removed(int(level)) for module, level in zip(self.levels, levels, strict=True)]

    def sizes(self, levels: Levels) -> dict[str, list[int]]:
        """Groups that are left, by kind, layer by layer."""
        left: dict[str, list[int]] = {}
        for module, level in zip(self.levels, levels, strict=True):
            left.setdefault(module.module.kind, []).append(module.sizes[int(level)])
        return left

    def require_reachable(self, budgets: Mapping[str, float], asked: str) -> None:
        """Raise UnreachableTarget with what can be reached at most."""
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


def best_uniform(problem: Problem, modules: Sequence[ModuleLevels]) -> NDArray[np.int64]:
    """The best assignment in which all modules of a kind have the same size."""
    shared: dict[str, set[int]] = {}
    for own in modules:
        shared[own.module.kind] = shared.get(own.module.kind, set(own.sizes)) & set(own.sizes)
    best, smallest = None, math.inf
    for combination in itertools.product(*(sorted(sizes, reverse=True) for sizes in shared.values())):
        by_kind = dict(zip(shared, combination, strict=True))
        levels = np.array([own.sizes.index(by_kind[own.module.kind]) for own in modules])
        harm = math.fsum(float(row[level]) for row, level in zip(problem.priors, levels, strict=True))
        if harm < smallest and problem.fits(levels):
            best, smallest = levels, harm
    if best is None:
        raise InfeasibleBudget("no size that all layers share is within the budget")
    return best


def find_levels(
    choices: Choices,
    budgets: Mapping[str, float],
    prior_names: Sequence[str],
    loss: Loss,
    judge: Loss,
    *,
    method: str = "direct",
    evaluations: int = 100,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Found:
    """Find levels for a model that is within all budgets, its time by the table.

    Args:
        choices: what there is to choose from.
        budgets: as for `Choices.problem`.
        prior_names: the priors to try; the first wins a tie.
        loss: on the samples of the search.
        judge: on other samples; decides whether the search's result is kept.
        method: of `spdy_search.search`; "prior" for no search.
        evaluations: how often the search may call `loss`.
        seed: of the search.
        checkpoint: where the search keeps its state.
        progress: called with the evaluations done and the best loss.
    """
    try:
        starts = {name: choices.solve(name, budgets) for name in prior_names}
    except InfeasibleBudget as error:
        raise UnreachableTarget(f"not all budgets can be kept at once: {error}", "ask for less") from error
    known: dict[tuple[int, ...], float] = {}

    def memoised(levels: Any) -> float:
        key = tuple(int(level) for level in levels)
        if key not in known:
            known[key] = loss(choices.removed(key))
        return known[key]

    losses = {name: memoised(levels) for name, levels in starts.items()}
    best = min(losses, key=lambda name: losses[name])
    start = starts[best]
    chosen, searched_loss = start, None
    start_loss = judge(choices.removed(start))
    if method != "prior" and evaluations > 0 and not choices.uniform:
        try:
            result = search(
                choices.problem(best, budgets),
                memoised,
                evaluations,
                seed,
                method,
                # The paper's own search begins with nothing but its prior.
                starts=list(starts.values()) if method == "direct" else (),
                checkpoint=checkpoint,
                callback=None if progress is None else (lambda now: progress(now.evaluations, now.best)),
            )
        except ValueError as error:
            if checkpoint is None or not str(error).startswith(str(checkpoint)):
                raise
            raise BadRun(f"{checkpoint} is damaged", "delete it and run the command again") from error
        if result.interrupted:
            raise KeyboardInterrupt
        known.update({own.levels: own.loss for own in result.history})  # some are from before a kill
        searched_loss = judge(choices.removed(result.levels))
        # The other methods are there to be compared with: what they find stands.
        if searched_loss < start_loss or method != "direct":
            chosen = result.levels
    return Found(tuple(int(level) for level in chosen), best, losses, start_loss, searched_loss, len(known))


def prior_names_for(priors: Mapping[str, Priors]) -> list[str]:
    """The priors that all modules have and that are worth a try, the most trusted first."""
    common = set.intersection(*(set(own) for own in priors.values()))
    return [name for name in ("exact", "factored", "scalar", "stream") if name in common]

"""Stage 4, search: which size each module gets within the budget.

One exact solve with each prior; the best of those few by the real loss, on samples that the traces have not
seen; from there the direct search, kept only if it is better on a third part of the samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latency_profiler import LatencyTable
from numpy.typing import NDArray
from spdy_search import Problem, search, solve

from ziplm.errors import UnreachableTarget, UsageError
from ziplm.levels import ModuleLevels
from ziplm.prune import Priors

Levels = Sequence[int] | NDArray[np.int64]
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
    """All that may be chosen: levels of modules, what they cost, and what they are expected to harm."""

    def __init__(
        self, levels: Sequence[ModuleLevels], priors: Mapping[str, Priors], table: LatencyTable
    ) -> None:
        self.levels = levels
        self.table = table
        self.seconds = [module.seconds(table) for module in levels]
        self._priors = priors

    @property
    def dense_seconds(self) -> float:
        """What the table says of a model that has lost nothing."""
        curves = [self.table.curves[module.module.kind] for module in self.levels]
        return self.table.fixed + sum(curve(max(curve.sizes)) for curve in curves)

    @property
    def smallest_seconds(self) -> float:
        """What is left when every module is at its cheapest."""
        return self.table.fixed + sum(min(row) for row in self.seconds)

    def problem(self, prior: str, seconds: float) -> Problem:
        """Choose within a time for the whole model, by one of the priors."""
        rows = [
            [float(self._priors[m.module.name][prior][m.removed(level)]) for level in range(len(m.sizes))]
            if m.module.groups
            else [0.0]
            for m in self.levels
        ]
        return Problem(self.seconds, rows, seconds - self.table.fixed)

    def removed(self, levels: Levels) -> list[int]:
        """Groups that each module loses."""
        return [module.removed(int(level)) for module, level in zip(self.levels, levels, strict=True)]

    def sizes(self, levels: Levels) -> dict[str, list[int]]:
        """Groups that are left, by kind, layer by layer."""
        left: dict[str, list[int]] = {}
        for module, level in zip(self.levels, levels, strict=True):
            left.setdefault(module.module.kind, []).append(module.sizes[int(level)])
        return left

    def require_reachable(self, seconds: float, asked: str) -> None:
        """Raise UnreachableTarget with what can be reached at most."""
        if seconds < self.smallest_seconds:
            most, fixed = self.dense_seconds / self.smallest_seconds, self.table.fixed / self.dense_seconds
            raise UnreachableTarget(
                f"{asked} cannot be reached: with everything removed the model is {most:.2f}x as fast",
                f"{fixed:.0%} of its time is outside of what can be pruned: ask for less than {most:.1f}x",
            )
        if seconds > self.dense_seconds * (1 + 1e-9):
            raise UsageError(f"{asked} is slower than the dense model", "ask for a speedup above 1")


def find_levels(
    choices: Choices,
    seconds: float,
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
    """Find levels for a model that takes no longer than `seconds` by the table.

    Args:
        choices: what there is to choose from.
        seconds: for the whole model, the fixed part included.
        prior_names: the priors to try; the first wins a tie.
        loss: on the samples of the search.
        judge: on other samples; decides whether the search's result is kept.
        method: of `spdy_search.search`; "prior" for no search.
        evaluations: how often the search may call `loss`.
        seed: of the search.
        checkpoint: where the search keeps its state.
        progress: called with the evaluations done and the best loss.
    """
    starts = {name: solve(choices.problem(name, seconds)) for name in prior_names}
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
    if method != "prior" and evaluations > 0:
        result = search(
            choices.problem(best, seconds),
            memoised,
            evaluations,
            seed,
            method,
            # The paper's own search begins with nothing but its prior.
            starts=list(starts.values()) if method == "direct" else (),
            checkpoint=checkpoint,
            callback=None if progress is None else (lambda now: progress(now.evaluations, now.best)),
        )
        if result.interrupted:
            raise KeyboardInterrupt
        searched_loss = judge(choices.removed(result.levels))
        if searched_loss < start_loss or method == "ziplm":
            chosen = result.levels
    return Found(tuple(int(level) for level in chosen), best, losses, start_loss, searched_loss, len(known))


def prior_names_for(priors: Mapping[str, Priors]) -> list[str]:
    """The priors that all modules have and that are worth a try, the most trusted first."""
    common = set.intersection(*(set(own) for own in priors.values()))
    return [name for name in ("exact", "factored", "scalar", "stream") if name in common]

"""Search: choose the size of each branch within the budgets.

Each prior gives one exact solution. The search starts from the solution with the lowest loss on the search
samples, which the traces have not seen. With method "direct", the result is kept only if it is also clearly
better on the judging samples; the other methods serve for comparisons, and their results are always kept.

Clearly means by more than two standard errors. A twentieth of the samples may make half of a classifier's
divergence, so that a search easily finds levels that suit these. With 128 texts of SST-2 for each purpose,
four of six results had a lower loss on the judging samples, by up to a half, but a loss that was 2 to 11 %
higher on 1000 other sentences.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from spdy_search import CheckpointError, InfeasibleBudget, Problem, Progress, SearchResult, search

from ziplm.architectures.base import Size
from ziplm.errors import BadRun, NotFinite, UnreachableTarget
from ziplm.stages.choices import Choices, Levels
from ziplm.tasks.finite import HINT
from ziplm.tasks.heads import Divergence, is_clearly_lower, mean_divergence

# Evaluations in a row without a lower loss after which "direct" ends; the first twelve only explore. In nine
# recorded searches of MiniLM and a GPT2 to 1.5x to 4x, what came later was not clearly better anywhere.
PATIENCE = 16

Loss = Callable[[Sequence[Size]], float]
"""Computes a loss from the size of each branch."""
Judge = Callable[[Sequence[Size]], Sequence[Divergence]]
"""Computes the loss of each batch from the size of each branch."""
Race = Callable[[tuple[Sequence[Size], Sequence[Size]]], float]
"""Computes a loss from sizes and those of a rival; an estimate is enough if the rival's is clearly lower."""


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        levels: one level for each branch.
        prior: name of the prior whose solution the search started from.
        prior_losses: loss of each prior's solution on the search samples; an estimate if it fell behind
            another one in a race.
        start_loss: loss of the best of these solutions on the judging samples.
        searched_loss: loss of the search's result on the judging samples, whether it is kept or not; None
            without a search.
        evaluations: number of losses computed on the search samples.
    """

    levels: tuple[int, ...]
    prior: str
    prior_losses: dict[str, float]
    start_loss: float
    searched_loss: float | None
    evaluations: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Found":
        """Make a result from the values of `to_dict`."""
        return cls(**{**values, "levels": tuple(values["levels"])})


class _RememberedLoss:
    """The loss of levels, computed once for each assignment.

    Attributes:
        known: the losses so far.
        rival: the best assignment so far, which others race against; None to compute losses in full.
    """

    def __init__(self, choices: Choices, loss: Loss, race: Race | None) -> None:
        self._choices, self._loss, self._race = choices, loss, race
        self.known: dict[tuple[int, ...], float] = {}
        self.rival: tuple[int, ...] | None = None

    def __call__(self, levels: Levels) -> float:
        key = tuple(int(level) for level in levels)
        if key not in self.known:
            self.known[key] = _finite(self._computed(key))
        return self.known[key]

    def _computed(self, levels: tuple[int, ...]) -> float:
        sizes = self._choices.chosen(levels)
        if self._race is None or self.rival is None:
            return self._loss(sizes)
        return self._race((sizes, self._choices.chosen(self.rival)))


def _finite(loss: float) -> float:
    """Return the loss; raise NotFinite if it is not finite, because it could not be compared with others."""
    if not math.isfinite(loss):
        raise NotFinite(f"the loss of a shrunk model is {loss}", HINT)
    return loss


def find_levels(
    choices: Choices,
    budgets: Mapping[str, float],
    prior_names: Sequence[str],
    loss: Loss,
    judge: Judge,
    *,
    race: Race | None = None,
    method: str = "direct",
    evaluations: int = 32,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Found:
    """Find levels within all budgets; the latency table predicts the seconds.

    Args:
        choices: the levels to choose from.
        budgets: budgets by name of the cost, as for `Choices.problem`.
        prior_names: the priors to try; the first wins a tie.
        loss: loss on the search samples.
        judge: losses on the judging samples, which decide whether the result of method "direct" is kept.
        race: loss on the search samples that may end early where the best candidate so far is clearly better,
            for method "direct".
        method: method of `spdy_search.search`, or "prior" for no search.
        evaluations: number of times that the search may call `loss`.
        seed: seed of the search.
        checkpoint: file in which the search keeps its state, to resume from.
        progress: called with the number of evaluations done and the best loss.

    Raises:
        UnreachableTarget: if the budgets cannot all be met.
        BadRun: if the checkpoint is damaged.
        NotFinite: if a loss is not finite.
    """
    remembered = _RememberedLoss(choices, loss, race if method == "direct" else None)
    starts = _prior_solutions(choices, budgets, prior_names)
    losses: dict[str, float] = {}
    for name, levels in starts.items():
        losses[name] = remembered(levels)
        best = min(losses, key=lambda known: losses[known])
        remembered.rival = tuple(int(level) for level in starts[best])
    chosen = starts[best]
    start_parts = judge(choices.chosen(chosen))
    start_loss = _finite(mean_divergence(start_parts))
    searched_loss = None
    searching = method != "prior" and evaluations > 0 and not choices.uniform
    if searching and not choices.need_no_pruning(budgets):
        extra_starts = list(starts.values()) if method == "direct" else []  # other methods choose their own
        result = _searched(
            choices.problem(best, budgets),
            remembered,
            extra_starts,
            evaluations,
            seed,
            method,
            checkpoint,
            progress,
        )
        parts = start_parts
        if not np.array_equal(result.levels, chosen):
            parts = judge(choices.chosen(result.levels))
        searched_loss = _finite(mean_divergence(parts))
        if is_clearly_lower(parts, start_parts) or method != "direct":
            chosen = result.levels
    levels = tuple(int(level) for level in chosen)
    return Found(levels, best, losses, start_loss, searched_loss, len(remembered.known))


def _prior_solutions(
    choices: Choices, budgets: Mapping[str, float], prior_names: Sequence[str]
) -> dict[str, Levels]:
    try:
        return {name: choices.solve(name, budgets) for name in prior_names}
    except InfeasibleBudget as error:
        raise UnreachableTarget(
            f"the target and its limits cannot be met together: {error}",
            "loosen a limit, or ask for a smaller speedup",
        ) from error


def _searched(
    problem: Problem,
    loss: _RememberedLoss,
    starts: Sequence[Levels],
    evaluations: int,
    seed: int,
    method: str,
    checkpoint: Path | None,
    progress: Callable[[int, float], None] | None,
) -> SearchResult:
    """Improve on the solutions of the priors."""

    def follow(now: Progress) -> None:
        loss.rival = now.levels
        if progress is not None:
            progress(now.evaluations, now.best)

    try:
        result = search(
            problem,
            loss,
            evaluations,
            seed,
            method,
            starts=starts,
            checkpoint=checkpoint,
            callback=follow,
            patience=PATIENCE if method == "direct" else None,
        )
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise BadRun(f"{checkpoint} is damaged", "delete it and run the command again") from error
    if result.interrupted:
        raise KeyboardInterrupt
    loss.known.update({entry.levels: entry.loss for entry in result.history})  # some predate an interruption
    return result

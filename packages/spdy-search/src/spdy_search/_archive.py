"""The evaluations of a search: no assignment is evaluated twice, and a checkpoint keeps all of them."""

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ._checkpoint import Checkpoint, Screens
from ._evaluation import Evaluation, Progress
from ._problem import Levels, Problem

Loss: TypeAlias = Callable[[Levels], float]
Screen: TypeAlias = Callable[[Levels, float], float]

SCREENED_BATCH = 8  # candidates at the start of a successive halving


class Archive:
    """The evaluations of one search.

    A resumed search asks for the same assignments again and gets their losses from the checkpoint, which
    therefore holds nothing but the results of the loss and the screen.

    Args:
        problem: The problem that is searched.
        loss: The user's loss.
        evaluations: Largest number of full evaluations.
        screen: The user's screen, a cheap loss on a fraction of the samples.
        callback: Called after every full evaluation.
        checkpoint: File to resume from and to write to after every full evaluation.

    Attributes:
        history: Full evaluations in order.
        best: The evaluation with the smallest loss, None before the first.
    """

    def __init__(
        self,
        problem: Problem,
        loss: Loss,
        evaluations: int,
        screen: Screen | None = None,
        callback: Callable[[Progress], object] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.problem = problem
        self.evaluations = evaluations
        self.history: list[Evaluation] = []
        self.best: Evaluation | None = None
        self._loss = loss
        self._screen = screen
        self._callback = callback
        self._checkpoint = checkpoint
        self._known: dict[tuple[int, ...], Evaluation] = {}  # evaluated by this search
        self._stored: dict[tuple[int, ...], Evaluation] = {}  # these, and those of the checkpoint
        self._screened: Screens = {}
        if checkpoint is not None:
            stored, self._screened = checkpoint.read()
            self._stored = {evaluation.levels: evaluation for evaluation in stored}
        seconds_before = max((evaluation.seconds for evaluation in self._stored.values()), default=0.0)
        self._started = time.perf_counter() - seconds_before

    @property
    def full(self) -> bool:
        """Whether all evaluations have been used."""
        return len(self.history) >= self.evaluations

    @property
    def best_loss(self) -> float:
        """The smallest loss, infinity if there is none."""
        return math.inf if self.best is None else self.best.loss

    @property
    def best_levels(self) -> Levels:
        """The best assignment, int64 (modules,); requires at least one evaluation."""
        assert self.best is not None
        return np.array(self.best.levels)

    @property
    def batch(self) -> int:
        """Number of candidates that a method should propose at a time."""
        return 1 if self._screen is None else SCREENED_BATCH

    def knows(self, levels: Levels) -> bool:
        """Whether the assignment has been evaluated."""
        return tuple(levels.tolist()) in self._known

    def loss_of(self, levels: Levels) -> float:
        """Loss of an assignment; infinity if it failed or has not been evaluated."""
        evaluation = self._known.get(tuple(levels.tolist()))
        return math.inf if evaluation is None else evaluation.loss

    def evaluate(self, levels: Levels) -> None:
        """Fully evaluate an assignment that is not yet known."""
        key = tuple(levels.tolist())
        stored = self._stored.get(key)
        evaluation = self._call_loss(levels) if stored is None else stored
        self._known[key] = evaluation
        self.history.append(evaluation)
        if self.best is None or evaluation.loss < self.best.loss:
            self.best = evaluation
        if stored is None:
            self._store(evaluation)
        if self._callback is not None:
            done, best = len(self.history), self.best
            self._callback(Progress(best.loss, done, self.evaluations, evaluation.seconds, best.levels))

    def promising(self, candidates: list[Levels]) -> list[Levels]:
        """Select the candidates worth a full evaluation.

        With a screen this is the survivor of a successive halving, in which each round uses twice as many
        samples as the one before; without a screen, all candidates.
        """
        fraction = 1 / len(candidates) if candidates else 1.0
        while self._screen is not None and len(candidates) > 1:
            values = [self._call_screen(self._screen, levels, fraction) for levels in candidates]
            order = np.argsort(values, kind="stable")[: len(candidates) // 2]
            candidates = [candidates[place] for place in order]
            fraction = min(2 * fraction, 1.0)
        return candidates

    def _call_loss(self, levels: Levels) -> Evaluation:
        value = _number_or_infinity("loss", self._loss(levels.copy()))
        return Evaluation(tuple(levels.tolist()), value, time.perf_counter() - self._started)

    def _call_screen(self, screen: Screen, levels: Levels, fraction: float) -> float:
        key = (tuple(levels.tolist()), fraction)
        if key not in self._screened:
            self._screened[key] = _number_or_infinity("screen", screen(levels.copy(), fraction))
        return self._screened[key]

    def _store(self, evaluation: Evaluation) -> None:
        self._stored[evaluation.levels] = evaluation
        if self._checkpoint is not None:
            self._checkpoint.write(self._stored.values(), self._screened)


def _number_or_infinity(function: str, value: Any) -> float:
    """Convert the result of a user's function to a float; infinity if it is not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{function} must return one number; got {type(value).__name__}") from None
    return number if math.isfinite(number) else math.inf

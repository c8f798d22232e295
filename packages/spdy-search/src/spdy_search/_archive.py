"""What a search has evaluated: nothing twice, failures counted, all of it kept in a file if asked."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ._problem import Levels, Problem

Loss: TypeAlias = Callable[[Levels], float]
Screen: TypeAlias = Callable[[Levels, float], float]

FORMAT = 1
SCREENED_BATCH = 8  # candidates that start a successive halving


@dataclass(frozen=True)
class Evaluation:
    """One full evaluation.

    Attributes:
        levels: The assignment.
        loss: Its loss; infinity if it failed, that is, if the loss was not a finite number.
        seconds: When it was done, since the search began; interruptions do not count.
    """

    levels: tuple[int, ...]
    loss: float
    seconds: float


@dataclass(frozen=True)
class Progress:
    """Where a search is, for a progress bar.

    Attributes:
        best: The smallest loss so far; infinity while there is none.
        evaluations: Full evaluations done.
        total: Full evaluations at most.
        seconds: Since the search began.
    """

    best: float
    evaluations: int
    total: int
    seconds: float


class Archive:
    """The evaluations of one search.

    A resumed search asks for the same assignments again and is answered from the file. So nothing else need
    be stored for it to end as if it had not been interrupted.
    """

    def __init__(
        self,
        problem: Problem,
        loss: Loss,
        evaluations: int,
        screen: Screen | None = None,
        callback: Callable[[Progress], object] | None = None,
        checkpoint: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        self.problem = problem
        self.evaluations = evaluations
        self.history: list[Evaluation] = []
        self.best: Evaluation | None = None
        self._loss = loss
        self._screen = screen
        self._callback = callback
        self._checkpoint = checkpoint
        self._fingerprint = fingerprint
        self._known: dict[tuple[int, ...], Evaluation] = {}
        self._stored: dict[tuple[int, ...], Evaluation] = {}
        self._screened: dict[tuple[tuple[int, ...], float], float] = {}
        if checkpoint is not None and not checkpoint.parent.is_dir():
            raise ValueError(f"the folder of the checkpoint {checkpoint} does not exist; make it first")
        if checkpoint is not None and checkpoint.exists():
            self._read(checkpoint)
        earlier = max((evaluation.seconds for evaluation in self._stored.values()), default=0.0)
        self._began = time.perf_counter() - earlier

    @property
    def full(self) -> bool:
        """Whether all evaluations have been used."""
        return len(self.history) >= self.evaluations

    @property
    def best_levels(self) -> Levels:
        """The best assignment; there must have been an evaluation."""
        assert self.best is not None
        return np.array(self.best.levels)

    @property
    def batch(self) -> int:
        """How many candidates a method should propose at a time."""
        return 1 if self._screen is None else SCREENED_BATCH

    def knows(self, levels: Levels) -> bool:
        """Whether the assignment has been evaluated."""
        return tuple(levels.tolist()) in self._known

    def loss_of(self, levels: Levels) -> float:
        """The loss of an assignment; infinity if it failed or has not been evaluated."""
        evaluation = self._known.get(tuple(levels.tolist()))
        return math.inf if evaluation is None else evaluation.loss

    def evaluate(self, levels: Levels) -> None:
        """Evaluate in full an assignment that is not yet known."""
        key = tuple(levels.tolist())
        evaluation = self._stored.get(key)
        if evaluation is None:
            value = _returned("loss", self._loss(levels.copy()))
            seconds = time.perf_counter() - self._began
            evaluation = Evaluation(key, value, seconds)
        self._known[key] = evaluation
        self.history.append(evaluation)
        if self.best is None or evaluation.loss < self.best.loss:
            self.best = evaluation
        if key not in self._stored:
            self._stored[key] = evaluation
            self._write()
        if self._callback is not None:
            progress = Progress(self.best.loss, len(self.history), self.evaluations, evaluation.seconds)
            self._callback(progress)

    def promising(self, candidates: list[Levels]) -> list[Levels]:
        """The candidates worth a full evaluation: successive halving, each round on twice the samples."""
        fraction = 1 / len(candidates) if candidates else 1.0
        while self._screen is not None and len(candidates) > 1:
            values = [self._screen_value(levels, fraction) for levels in candidates]
            order = np.argsort(values, kind="stable")[: len(candidates) // 2]
            candidates = [candidates[place] for place in order]
            fraction = min(2 * fraction, 1.0)
        return candidates

    def _screen_value(self, levels: Levels, fraction: float) -> float:
        assert self._screen is not None
        key = (tuple(levels.tolist()), fraction)
        if key not in self._screened:
            self._screened[key] = _returned("screen", self._screen(levels.copy(), fraction))
        return self._screened[key]

    def _write(self) -> None:
        if self._checkpoint is None:
            return
        state = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "evaluations": [[e.levels, _json_number(e.loss), e.seconds] for e in self._stored.values()],
            "screens": [[*key, _json_number(value)] for key, value in self._screened.items()],
        }
        temporary = self._checkpoint.with_name(f".{self._checkpoint.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(state), encoding="utf-8")
            temporary.replace(self._checkpoint)
        finally:
            temporary.unlink(missing_ok=True)  # left over only if interrupted

    def _read(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            fingerprint, version = state["fingerprint"], state["format"]
            evaluations = [Evaluation(tuple(a), _number(b), float(c)) for a, b, c in state["evaluations"]]
            screens = {(tuple(a), float(b)): _number(c) for a, b, c in state["screens"]}
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is not a checkpoint of a search ({error}); remove it or name another file"
            ) from None
        if version != FORMAT:
            raise ValueError(
                f"{path} has format {version}, this version reads {FORMAT}; remove it to begin anew"
            )
        if fingerprint != self._fingerprint:
            raise ValueError(
                f"{path} belongs to a search with another problem, seed, method or starts; "
                "name another file, or remove it to begin anew"
            )
        self._stored = {evaluation.levels: evaluation for evaluation in evaluations}
        self._screened = screens


def fingerprint(problem: Problem, **settings: Any) -> str:
    """A digest of all that decides which assignments a search asks for, except how many."""
    costs = {name: [row.tolist() for row in rows] for name, rows in problem.costs.items()}
    priors = [row.tolist() for row in problem.priors]
    text = json.dumps([costs, priors, problem.budgets, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _returned(function: str, value: Any) -> float:
    """What a user's function returned, as a float; infinity if it is a number that is not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{function} must return one number; got {type(value).__name__}") from None
    return number if math.isfinite(number) else math.inf


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)

"""`search`: ask a method for assignments, evaluate those that are new, keep the best."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import _methods
from ._archive import Archive, Evaluation, Loss, Progress, Screen, fingerprint
from ._direct import direct
from ._problem import Levels, Problem
from ._solve import solve

Method: TypeAlias = Callable[[Problem, Archive, np.random.Generator], Iterator[Levels]]

METHODS: dict[str, Method] = {
    "direct": direct,
    "ziplm": _methods.ziplm,
    "evolution": _methods.evolution,
    "prior": _methods.prior,
    "uniform": _methods.uniform,
}
PATIENCE = 200  # known candidates in a row after which no new ones are expected


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        levels: int64 (modules,), the best assignment; always within budget.
        loss: Its loss; infinity if no evaluation succeeded.
        cost: Its total cost, or a dictionary of them, by `math.fsum`.
        history: Every full evaluation in order.
        interrupted: Whether Ctrl-C ended it early.
    """

    levels: Levels
    loss: float
    cost: float | dict[str, float]
    history: tuple[Evaluation, ...]
    interrupted: bool

    @property
    def evaluations(self) -> int:
        """Full evaluations, of distinct assignments."""
        return len(self.history)

    @property
    def failed(self) -> int:
        """Evaluations whose loss was not finite."""
        return sum(math.isinf(evaluation.loss) for evaluation in self.history)


def search(
    problem: Problem,
    loss: Loss,
    evaluations: int = 300,
    seed: int = 0,
    method: str = "direct",
    *,
    starts: Sequence[ArrayLike] = (),
    screen: Screen | None = None,
    callback: Callable[[Progress], object] | None = None,
    checkpoint: str | Path | None = None,
) -> SearchResult:
    """Look for the assignment within budget that has the smallest loss.

    The same arguments give the same result, provided that `loss` is deterministic. Ctrl-C returns the best
    so far.

    Args:
        problem: What may be chosen. Its priors guide the search; the better they are, the less there is to
            find.
        loss: `loss(levels)` of an assignment, int64 (modules,). A result that is not finite is a failed
            candidate: it counts as an evaluation and as the worst.
        evaluations: How many distinct assignments to evaluate at most. The search ends early when it finds no
            new ones.
        seed: Of the random numbers.
        method: "direct" learns from the evaluations which modules matter and moves around the best
            assignment; "ziplm" is the ZipLM paper's mutation of random coefficients; "evolution" switches
            levels at random; "prior" and "uniform" evaluate one assignment.
        starts: More assignments to begin with, each within budget.
        screen: `screen(levels, fraction)`, a cheap loss on a fraction of the samples. Methods that propose
            several candidates at a time then evaluate in full only the survivor of a successive halving.
        callback: Called with a `Progress` after every full evaluation.
        checkpoint: A JSON file to keep the evaluations in. If it exists, the search goes on where it was,
            to the same result.

    Raises:
        InfeasibleBudget: If no assignment is within budget.
        ValueError: If an argument is wrong or the checkpoint belongs to another search.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    if evaluations < 1:
        raise ValueError(f"evaluations must be at least 1; got {evaluations}")
    given = [_start(problem, place, start) for place, start in enumerate(starts)]
    archive = Archive(
        problem,
        loss,
        evaluations,
        screen,
        callback,
        None if checkpoint is None else Path(checkpoint),
        fingerprint(
            problem,
            method=method,
            seed=int(seed),
            starts=[levels.tolist() for levels in given],
            screened=screen is not None,
        ),
    )
    proposals = METHODS[method](problem, archive, np.random.default_rng(seed))
    interrupted = False
    try:
        _run(archive, given, proposals)
    except KeyboardInterrupt:
        interrupted = True
    levels = solve(problem) if archive.best is None else np.array(archive.best.levels)
    return SearchResult(
        levels=levels,
        loss=math.inf if archive.best is None else archive.best.loss,
        cost=problem.cost(levels),
        history=tuple(archive.history),
        interrupted=interrupted,
    )


def _run(archive: Archive, starts: Iterable[Levels], proposals: Iterator[Levels]) -> None:
    for levels in starts:
        if not archive.full and not archive.knows(levels):
            archive.evaluate(levels)
    known_in_a_row = 0
    while not archive.full and known_in_a_row < PATIENCE:
        candidates = next(proposals, None)
        if candidates is None:
            return
        distinct = {tuple(levels.tolist()): levels for levels in candidates}.values()
        fresh = [levels for levels in distinct if not archive.knows(levels)]
        known_in_a_row = 0 if fresh else known_in_a_row + len(candidates)
        for levels in archive.promising(fresh):
            if not archive.full:
                archive.evaluate(levels)


def _start(problem: Problem, place: int, start: ArrayLike) -> Levels:
    levels = problem.checked(start)
    if not problem.fits(levels):
        raise ValueError(
            f"start {place} is over budget: it costs {problem.cost(levels)}, the budget is {problem.budget}"
        )
    return levels

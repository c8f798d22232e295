"""`search`: evaluate the new assignments that a method proposes, and keep the best."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import _methods
from ._archive import Archive, Loss, Screen
from ._brief import brief_levels
from ._checkpoint import Checkpoint, fingerprint
from ._direct import direct
from ._evaluation import Evaluation, Progress
from ._problem import Levels, Problem
from ._solve import solve
from ._threads import one_blas_thread
from ._validate import whole_number

Method: TypeAlias = Callable[[Problem, Archive, np.random.Generator], Iterator[Levels]]

METHODS: dict[str, Method] = {
    "direct": direct,
    "ziplm": _methods.ziplm,
    "evolution": _methods.evolution,
    "prior": _methods.prior,
    "uniform": _methods.uniform,
}
MOST_KNOWN = 200  # known candidates in a row after which a search ends
# Evaluations in a row without an improvement after which "direct" ends. On the losses of bench/spdy.py,
# ending after 30 costs 0.03 % of the loss at most (mean of a kind of loss), and ending after 15 costs 0.6 %.
DIRECT_PATIENCE = 30


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        levels: int64 (modules,), best assignment; always within budget.
        loss: Loss of the best assignment; infinity only if Ctrl-C came before any evaluation succeeded.
        cost: Total cost of the best assignment, added by `math.fsum`; a dictionary if the costs are named.
        history: Full evaluations in order.
        interrupted: Whether Ctrl-C ended the search early.
    """

    levels: Levels
    loss: float
    cost: float | dict[str, float]
    history: tuple[Evaluation, ...]
    interrupted: bool

    def __repr__(self) -> str:
        return (
            f"SearchResult(levels={brief_levels(self.levels)}, loss={self.loss:.6g}, "
            f"evaluations={self.evaluations}, interrupted={self.interrupted})"
        )

    @property
    def evaluations(self) -> int:
        """Number of full evaluations, all of distinct assignments."""
        return len(self.history)

    @property
    def failed(self) -> int:
        """Number of evaluations whose loss was not finite."""
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
    patience: int | None = None,
) -> SearchResult:
    """Search for the assignment within budget with the smallest loss.

    The same arguments give the same result if `loss` is deterministic. Ctrl-C ends the search and returns the
    best assignment so far, even if no evaluation has succeeded yet.

    Args:
        problem: Costs, priors and budget. The priors guide the search.
        loss: Function that returns the loss of an assignment, int64 (modules,). If the result is not finite,
            the evaluation has failed: it counts as an evaluation, with an infinite loss. The search goes on,
            since other assignments may succeed.
        evaluations: Largest number of assignments to evaluate, all distinct. The search ends early if it
            finds no new ones, or if it runs out of patience.
        seed: Seed of the random numbers.
        method: "direct" learns from the evaluations which modules matter and searches around the best
            assignment; "ziplm" mutates random coefficients, as in the ZipLM paper; "evolution" switches
            levels at random; "prior" and "uniform" evaluate a single assignment.
        starts: Assignments to evaluate first, each within budget.
        screen: Cheap loss on a fraction of the samples, called as `screen(levels, fraction)`. Methods that
            propose several candidates at a time then fully evaluate only the survivor of a successive
            halving.
        callback: Called with a `Progress` after every full evaluation.
        checkpoint: JSON file that keeps the evaluations. If it exists, the search resumes from it and ends
            with the same result as without the interruption. Failed evaluations are kept as well and not
            repeated.
        patience: Number of evaluations in a row without an improvement after which the search ends. None
            means 30 for "direct", unless it can try every assignment, and no limit for the other methods.

    Returns:
        The best assignment, its loss and cost, and the history of evaluations.

    Raises:
        InfeasibleBudget: If no assignment is within budget.
        CheckpointError: If the checkpoint is damaged, cannot be read, or belongs to another search. It is a
            ValueError.
        ValueError: If an argument is invalid, `loss` or `screen` returns no number, or the search ends, other
            than by Ctrl-C, without any evaluation that succeeded.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    evaluations = whole_number("evaluations", evaluations, least=1)
    seed = whole_number("seed", seed, least=0)
    patience = None if patience is None else whole_number("patience", patience, least=1)
    checked_starts = [_checked_start(problem, place, start) for place, start in enumerate(starts)]
    identity = fingerprint(
        problem,
        method=method,
        seed=seed,
        starts=[levels.tolist() for levels in checked_starts],
        screened=screen is not None,
    )
    counts = problem.level_counts.tolist()
    file = None if checkpoint is None else Checkpoint(Path(checkpoint), identity, counts)
    archive = Archive(problem, loss, evaluations, screen, callback, file)
    proposals = METHODS[method](problem, archive, np.random.default_rng(seed))
    interrupted = False
    try:
        _evaluate_starts(archive, checked_starts)
        _evaluate_proposals(archive, proposals, patience or _default_patience(problem, method, evaluations))
    except KeyboardInterrupt:
        interrupted = True
    if not interrupted and archive.best is not None and math.isinf(archive.best.loss):
        raise _no_finite_loss(len(archive.history), checkpoint)
    levels = solve(problem) if archive.best is None else archive.best_levels
    return SearchResult(
        levels=levels,
        loss=math.inf if archive.best is None else archive.best.loss,
        cost=problem.cost(levels),
        history=tuple(archive.history),
        interrupted=interrupted,
    )


def _checked_start(problem: Problem, place: int, start: ArrayLike) -> Levels:
    levels = problem.checked(start)
    if not problem.fits(levels):
        raise ValueError(
            f"start {place} is over budget: it costs {problem.cost(levels)}, the budget is {problem.budget}"
        )
    return levels


def _no_finite_loss(tried: int, checkpoint: str | Path | None) -> ValueError:
    message = (
        f"no candidate had a finite loss: the loss was nan or infinite for every assignment tried ({tried}); "
        "check that the loss is finite for one of them, such as solve(problem)"
    )
    if checkpoint is not None:
        message += f", then remove the checkpoint {checkpoint}, which keeps the failed evaluations"
    return ValueError(message)


def _evaluate_starts(archive: Archive, starts: Iterable[Levels]) -> None:
    for levels in starts:
        if not archive.full and not archive.knows(levels):
            archive.evaluate(levels)


def _default_patience(problem: Problem, method: str, evaluations: int) -> int:
    exhaustive = math.prod(map(len, problem.useful)) <= evaluations
    return evaluations if method != "direct" or exhaustive else DIRECT_PATIENCE


def _evaluate_proposals(archive: Archive, proposals: Iterator[Levels], patience: int) -> None:
    """Evaluate the new candidates among the proposals.

    Ends when the archive is full, nothing new comes, or `patience` evaluations in a row did not improve on
    the best finite loss.
    """
    known_in_a_row = unimproved = 0
    while not archive.full and known_in_a_row < MOST_KNOWN and unimproved < patience:
        with one_blas_thread():  # not around `evaluate`, which calls the user's loss
            candidates = next(proposals, None)
        if candidates is None:
            return
        distinct = {tuple(levels.tolist()): levels for levels in candidates}.values()
        new = [levels for levels in distinct if not archive.knows(levels)]
        known_in_a_row = 0 if new else known_in_a_row + len(candidates)
        for levels in archive.promising(new):
            if not archive.full and unimproved < patience:
                before = archive.best_loss
                archive.evaluate(levels)
                improved = archive.best_loss < before or math.isinf(before)
                unimproved = 0 if improved else unimproved + 1

"""`--recover`: the fastest model that keeps a share of the dense model's metric.

A bisection suggests a speedup, with models that are shrunk but neither fitted nor refitted. A few finished
models around that speedup decide.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from spdy_search import InfeasibleBudget
from transformers import PreTrainedModel

from ziplm.architectures.base import Size
from ziplm.errors import UnreachableTarget
from ziplm.options.targets import Target
from ziplm.stages.choices import Choices

STEPS = 7  # of the bisection: on a logarithmic scale, the range shrinks to a hundredth
ATTEMPTS, RATIO = 4, 0.9  # number of finished models tried, and the ratio of their speedups
SLOWEST = 1.01  # the smallest speedup that is tried


class Candidate(NamedTuple):
    """A finished model.

    Attributes:
        model: the model.
        report: its report, which becomes metrics.json.
        exported: folder with its exported file; None for engines of torch.
    """

    model: PreTrainedModel
    report: dict[str, Any]
    exported: Path | None = None


class Guess(NamedTuple):
    """The result of the bisection.

    Attributes:
        speedup: the largest speedup that seems to keep the share.
        wanted: the metric to keep.
        steps: the speedups and metrics that led there.
    """

    speedup: float
    wanted: float
    steps: list[dict[str, float]]


def bisect_speedup(
    choices: Choices,
    prior_names: Sequence[str],
    target: Target,
    dense_metric: float,
    greater_is_better: bool,
    loss: Callable[[Sequence[Size]], float],
    metric_of: Callable[[list[Size], float], float],
) -> Guess:
    """Bisect the speedup, with one solve of each prior and one evaluation of the metric per step.

    Args:
        choices: levels to choose from.
        prior_names: priors to solve with; `loss` decides between their solutions.
        target: the target, of kind "recover".
        dense_metric: main metric of the dense model.
        greater_is_better: direction of the metric.
        loss: loss with branches of these sizes.
        metric_of: main metric with branches of these sizes; the speedup is for the progress text.

    Raises:
        UnreachableTarget: if a speedup and the limits of the target cannot be met together.
    """
    wanted = dense_metric * target.value if greater_is_better else dense_metric / target.value
    low, high = 1.0, choices.largest_speedup
    steps = []
    for _ in range(STEPS):
        speedup = math.sqrt(low * high)
        budgets = choices.budgets(Target("speedup", speedup, target.limits))
        try:
            candidates = [choices.solve(name, budgets) for name in prior_names]
        except InfeasibleBudget as error:
            raise UnreachableTarget(f"the limits cannot be met: {error}", "loosen a limit") from error
        best = min((choices.chosen(levels) for levels in candidates), key=loss)
        metric = metric_of(best, speedup)
        steps.append({"speedup": speedup, "metric": metric})
        good = is_good(metric, wanted, greater_is_better)
        low, high = (speedup, high) if good else (low, speedup)
    return Guess(max(low, SLOWEST), wanted, steps)


def fastest_that_recovers(
    guess: Guess,
    largest_speedup: float,
    greater_is_better: bool,
    build: Callable[[int, float], Candidate | None],
) -> Candidate:
    """Return the fastest candidate that keeps the share; if none does, the slowest one that was made.

    Args:
        guess: the result of `bisect_speedup`.
        largest_speedup: speedup with everything removed.
        greater_is_better: direction of the metric.
        build: makes a finished candidate, given the number of the attempt and a speedup; None if no model
            reaches that speedup when it is measured.

    Returns:
        The candidate; its report gains an entry "recover": the metric wanted, and whether it is reached.

    Raises:
        UnreachableTarget: if no attempt made a candidate.
    """

    def attempt(number: int, speedup: float) -> Candidate | None:
        candidate = build(number, speedup)
        if candidate is not None:
            metric = candidate.report["metric"]["compressed"]
            kept = is_good(metric, guess.wanted, greater_is_better)
            candidate.report["recover"] = {"wanted": guess.wanted, "kept": kept}
        return candidate

    first = attempt(0, guess.speedup)
    if _is_kept(first):
        return _go_faster(attempt, first, guess.speedup, RATIO * largest_speedup)
    return _go_slower(attempt, first, guess.speedup)


def _go_faster(
    attempt: Callable[[int, float], Candidate | None], best: Candidate, speedup: float, fastest: float
) -> Candidate:
    """Try higher speedups for as long as they are reached and the share is kept."""
    for number in range(1, ATTEMPTS):
        speedup /= RATIO
        if speedup > fastest:
            break
        candidate = attempt(number, speedup)
        if not _is_kept(candidate):
            break
        best = candidate
    return best


def _go_slower(
    attempt: Callable[[int, float], Candidate | None], candidate: Candidate | None, speedup: float
) -> Candidate:
    """Try lower speedups until one is reached and the share is kept."""
    for number in range(1, ATTEMPTS):
        if _is_kept(candidate) or speedup <= SLOWEST:
            break
        speedup = max(SLOWEST, RATIO * speedup)
        candidate = attempt(number, speedup) or candidate
    if candidate is None:
        raise UnreachableTarget(
            f"none of the models that were tried is as fast as intended, not even {speedup:.2f}x",
            "give --profile-seconds more time, so that the latency table is more precise",
        )
    return candidate


def _is_kept(candidate: Candidate | None) -> TypeGuard[Candidate]:
    return candidate is not None and bool(candidate.report["recover"]["kept"])


def is_good(metric: float, wanted: float, greater_is_better: bool) -> bool:
    """Return whether a metric reaches the one that is wanted."""
    return metric >= wanted if greater_is_better else metric <= wanted

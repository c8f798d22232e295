"""`--recover`: the fastest model that keeps a share of the dense model's metric."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

from spdy_search import InfeasibleBudget

from ziplm.errors import UnreachableTarget
from ziplm.options.targets import Target
from ziplm.pipelines import common_steps as common
from ziplm.pipelines import target_steps as each
from ziplm.pipelines.start import Start
from ziplm.pipelines.target_steps import Pruned
from ziplm.runs.folder import Run
from ziplm.stages.choices import Choices
from ziplm.stages.shrink import shrink
from ziplm.stages.stitch import Stitcher

STEPS = 7  # of the bisection: on a logarithmic scale, the range shrinks to a hundredth
ATTEMPTS, STEP_BACK = 4, 0.9  # number of finished models tried, and the ratio of their speedups
SLOWEST = 1.01  # the smallest speedup that is tried

C = TypeVar("C", bound=Any)
"""A candidate: a model with its report."""


def fastest_that_recovers(
    start: Start,
    reach: Choices,
    pruned: Pruned,
    target: Target,
    build: Callable[..., C],
    run: Run,
) -> C:
    """Return the fastest candidate that keeps the share; if none does, the slowest one that was tried.

    A bisection with unfinished models suggests a speedup. A few finished models around it decide.

    Args:
        start: what the run starts from.
        reach: choices of the dense model.
        pruned: the pruned current model.
        target: the target, of kind "recover".
        build: makes a candidate, given a speedup target and a folder for intermediate results.
        run: the run.
    """
    state = run.target_state(target.name)
    guess = run.stored(state / "recover.json", lambda: bisect_speedup(start, pruned, target, run))

    def attempt(number: int, speedup: float) -> C:
        aim = Target("speedup", speedup, target.limits)
        candidate = build(aim, state / f"attempt{number}")
        kept = as_good_as(start, candidate.report["metric"]["compressed"], guess["wanted"])
        candidate.report["recover"] = {"wanted": guess["wanted"], "kept": kept}
        return candidate

    first = attempt(0, guess["speedup"])
    if _kept(first):
        return _go_faster(attempt, first, guess["speedup"], STEP_BACK * reach.largest_speedup)
    candidate = _go_slower(attempt, first, guess["speedup"])
    if not _kept(candidate):
        run.reporter.note(f"target {target.name} is missed: {guess['wanted']:.4g} was wanted")
    return candidate


def _go_faster(attempt: Callable[[int, float], C], best: C, speedup: float, fastest: float) -> C:
    """Try higher speedups for as long as the share is kept."""
    for number in range(1, ATTEMPTS):
        speedup /= STEP_BACK
        if speedup > fastest:
            break
        candidate = attempt(number, speedup)
        if not _kept(candidate):
            break
        best = candidate
    return best


def _go_slower(attempt: Callable[[int, float], C], candidate: C, speedup: float) -> C:
    """Try lower speedups until the share is kept."""
    for number in range(1, ATTEMPTS):
        if _kept(candidate) or speedup <= SLOWEST:
            break
        speedup = max(SLOWEST, STEP_BACK * speedup)
        candidate = attempt(number, speedup)
    return candidate


def _kept(candidate: Any) -> bool:
    return bool(candidate.report["recover"]["kept"])


def bisect_speedup(start: Start, pruned: Pruned, target: Target, run: Run) -> dict[str, Any]:
    """Bisect the speedup, with one solve of each prior and one evaluation per step.

    The metric on the first evaluation split decides; evaluate the result on other data for an unbiased figure.

    Returns:
        "speedup"; "wanted", the metric to keep; and "steps", the speedups and metrics that led there.
    """
    choices = pruned.choices
    dense = common.main_metric(start, common.evaluate_dense(start, run))
    wanted = dense * target.value if start.task.greater_is_better else dense / target.value
    loss = each.loss_on(start, pruned, Stitcher(pruned.current, pruned.traces), "search", run)
    low, high = 1.0, choices.largest_speedup
    steps = []
    for _ in range(STEPS):
        speedup = math.sqrt(low * high)
        budgets = choices.budgets(Target("speedup", speedup, target.limits))
        try:
            candidates = [choices.solve(name, budgets) for name in pruned.prior_names]
        except InfeasibleBudget as error:
            raise UnreachableTarget(f"not all budgets can be kept: {error}", "ask for less") from error
        best = min((choices.removed(levels) for levels in candidates), key=loss)
        small = shrink(pruned.current, best, pruned.traces_in_order())
        metric = common.main_metric(start, common.evaluate(start, small, f"recover: {speedup:.2f}x", run))
        steps.append({"speedup": speedup, "metric": metric})
        low, high = (speedup, high) if as_good_as(start, metric, wanted) else (low, speedup)
    return {"speedup": max(low, SLOWEST), "wanted": wanted, "steps": steps}


def as_good_as(start: Start, metric: float, wanted: float) -> bool:
    """Return whether a value of the main metric is good enough."""
    return metric >= wanted if start.task.greater_is_better else metric <= wanted

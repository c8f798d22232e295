"""`--recover`: the largest speedup at which the metric is still good enough."""

import math
from typing import Any

from spdy_search import InfeasibleBudget

from ziplm.errors import UnreachableTarget
from ziplm.pipeline import Pipeline
from ziplm.shrink import shrink
from ziplm.targets import Target
from ziplm.traces import InOrder

Limits = tuple[tuple[str, float], ...]
STEPS = 7  # of the bisection: the range shrinks to a hundredth of itself, on a logarithmic scale


def speedup_that_recovers(pipeline: Pipeline, share: float, limits: Limits = ()) -> dict[str, Any]:
    """Bisect the speedup, with one solve and one evaluation a step, on the first evaluation split.

    The metric is looked at to choose: for an unbiased figure evaluate the result on other data.

    Returns:
        The speedup, and the steps that led to it.
    """
    choices, task = pipeline.choices, pipeline.task
    dense = pipeline.main_metric(pipeline.dense_metrics)
    wanted = dense * share if task.greater_is_better else dense / share
    traces = InOrder(pipeline.traces, [m.module.name for m in choices.levels])
    low, high = 1.0, choices.largest_speedup
    steps = []
    for _ in range(STEPS):
        speedup = math.sqrt(low * high)
        budgets = Target("speedup", speedup, limits).budgets(choices)
        try:
            candidates = [choices.solve(name, budgets) for name in pipeline.prior_names]
        except InfeasibleBudget as error:
            raise UnreachableTarget(f"not all budgets can be kept: {error}", "ask for less") from error
        best = min((choices.removed(levels) for levels in candidates), key=pipeline.search_loss)
        metrics = pipeline.evaluate(shrink(pipeline.model, best, traces), f"recover: {speedup:.2f}x")
        metric = pipeline.main_metric(metrics)
        steps.append({"speedup": speedup, "metric": metric})
        good = pipeline.as_good_as(metric, wanted)
        low, high = (speedup, high) if good else (low, speedup)
    return {"speedup": max(low, 1.01), "wanted": wanted, "steps": steps}

"""Intervals: how far a metric, or the difference of two models, may be off because the examples are few.

All intervals have a coverage of 95 %. They describe the choice of evaluation examples, which are taken to be
independent of each other, and nothing else: not the seed of a run, nor a change of domain.
"""

import math

import numpy as np

from ziplm.errors import UsageError
from ziplm.tasks.base import Predictions, Task

Interval = tuple[float, float]
"""Lower and upper end."""

RESAMPLES = 1000
TAILS = (0.025, 0.975)
NORMAL = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


def metric_intervals(
    task: Task, predictions: Predictions, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """Return a 95 % interval for each metric.

    Proportions get a Wilson interval. All other metrics get the percentiles of a bootstrap over examples. A
    single example cannot be resampled, so these metrics are then left out.

    Args:
        task: the task that defines the metrics.
        predictions: a model's predictions on one split.
        seed: seed of the bootstrap; all metrics see the same resampled examples.
        resamples: number of resamples.
    """
    metrics = task.metrics_of(predictions)
    count = _count(predictions)
    found = {name: wilson(metrics[name], count) for name in metrics if name in task.proportions}
    if count > 1 and len(found) < len(metrics):
        resampled = _resampled(task, predictions, seed, resamples)
        found |= {name: _percentiles(resampled[name]) for name in metrics if name not in found}
    return {name: found[name] for name in metrics if name in found}


def difference_interval(
    task: Task,
    predictions: Predictions,
    dense_predictions: Predictions,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Interval]:
    """Return a 95 % interval for the difference of each metric: compressed minus dense.

    The bootstrap is paired: both models are judged on the same resampled examples, so that examples which are
    hard for both do not widen the interval. A single example has no interval.

    Args:
        task: the task that defines the metrics.
        predictions: the compressed model's predictions on one split.
        dense_predictions: the dense model's predictions on the same examples, in the same order.
        seed: seed of the bootstrap.
        resamples: number of resamples.

    Raises:
        UsageError: if the numbers of examples differ.
    """
    count, dense_count = _count(predictions), _count(dense_predictions)
    if count != dense_count:
        raise UsageError(
            f"there are {count} examples to evaluate on, but {dense_count} predictions of the dense model",
            "undo the change of the data, or choose another --output",
        )
    if count < 2:
        return {}
    own = _resampled(task, predictions, seed, resamples)
    dense = _resampled(task, dense_predictions, seed, resamples)  # by the same seed, the same examples
    return {name: _percentiles(own[name] - dense[name]) for name in own}


def wilson(share: float, count: int) -> Interval:
    """Return the Wilson interval of a proportion.

    It is the set of all true proportions that a test at the 5 % level would not reject. In contrast to
    share ± 1.96 standard errors, it stays within 0 and 1, and has a width even if the share is 0 or 1.

    Args:
        share: the proportion found, from 0 to 1.
        count: number of examples.
    """
    weight = NORMAL**2 / count
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    return max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))


def _resampled(task: Task, predictions: Predictions, seed: int, resamples: int) -> dict[str, np.ndarray]:
    """Return the values of each metric on resampled examples, (resamples,)."""
    generator = np.random.default_rng(seed)
    count = _count(predictions)
    found = []
    for _ in range(resamples):
        drawn = generator.integers(count, size=count)
        found.append(task.metrics_of({name: values[drawn] for name, values in predictions.items()}))
    return {name: np.array([metrics[name] for metrics in found]) for name in found[0]}


def _percentiles(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, TAILS)
    return float(low), float(high)


def _count(predictions: Predictions) -> int:
    """Return the number of examples."""
    return len(next(iter(predictions.values())))

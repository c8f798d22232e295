"""Evaluate: a model's metrics on its task, and the divergence of its outputs from a reference model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.intervals import Interval, difference_interval, metric_intervals
from ziplm.tasks.base import Features, Predictions, Progress, Task
from ziplm.tasks.finite import finite_outputs, require_finite
from ziplm.tasks.heads import Divergence

BATCH_SIZE = 8  # small, so that the spread between batches shows how certain a difference is


@dataclass(frozen=True)
class Evaluation:
    """A model's results on every evaluation split, by the split's name.

    Attributes:
        predictions: what the metrics are computed from.
        metrics: metrics by name.
        intervals: 95 % intervals of the metrics; see `metric_intervals`.
    """

    predictions: dict[str, Predictions]
    metrics: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, Interval]]

    @classmethod
    def of(cls, task: Task, predictions: Mapping[str, Predictions]) -> "Evaluation":
        """Compute metrics and intervals from predictions."""
        return cls(
            dict(predictions),
            {split: task.metrics_of(found) for split, found in predictions.items()},
            {split: metric_intervals(task, found) for split, found in predictions.items()},
        )

    def differences(self, task: Task, dense: "Evaluation") -> dict[str, dict[str, Interval]]:
        """Return intervals for the metrics minus those of the dense model; see `difference_interval`."""
        return {
            split: difference_interval(task, found, dense.predictions[split])
            for split, found in self.predictions.items()
        }


def predict_split(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    *,
    reference: PreTrainedModel | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Predictions:
    """Return the predictions of a model on one evaluation split.

    Args:
        model: the model.
        task: the task.
        features: the examples.
        reference: the dense model, for metrics that compare with it.
        batch_size: examples per batch.
        progress: called with the number of examples done and the total.
    """
    if reference is not None:
        task.prepare_reference(reference, features)
    return task.predict(model, features, batch_size, progress=progress)


def divergences(
    model: PreTrainedModel,
    reference: DenseOutputs,
    task: Task,
    features: Sequence[Features],
    workers: Workers = ALONE,
) -> list[Divergence]:
    """Return the divergence of a model's outputs from those of a reference, for each small batch.

    Raises:
        NotFinite: if an output of either model, or the divergence, is not finite.
    """
    (found,) = divergences_of_each([model], reference, task, features, workers)
    return found


@torch.inference_mode()
def divergences_of_each(
    models: Sequence[PreTrainedModel],
    reference: DenseOutputs,
    task: Task,
    features: Sequence[Features],
    workers: Workers = ALONE,
) -> list[list[Divergence]]:
    """Return the divergences of several models from the same reference, which then runs only once."""
    parts: list[list[Divergence]] = []  # of each batch
    for _, batch in workers.share(task.batches(features, BATCH_SIZE, reference.model.device)):
        wanted = reference(batch)
        parts.append([])
        for model in models:
            outputs = finite_outputs(task.head, model, batch)
            part = task.head.divergence(model, outputs, reference.model, wanted, batch)
            require_finite("the divergence from the reference model", [torch.tensor(part.total)])
            parts[-1].append(part)
    return [list(of_model) for of_model in zip(*workers.gathered(parts), strict=True)]

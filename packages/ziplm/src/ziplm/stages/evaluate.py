"""Evaluate: a model's metrics on its task, and the divergence of its outputs from a reference model."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ziplm.runs.workers import ALONE, Workers
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.heads import Divergence

BATCH_SIZE = 8  # small, so that the spread between batches shows how certain a difference is


def evaluate_split(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    *,
    reference: PreTrainedModel | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return all metrics of a model on one evaluation split.

    Args:
        model: the model.
        task: the task that defines the metrics.
        features: the examples.
        reference: the dense model, for metrics that compare with it.
        batch_size: examples per batch.
        progress: called with the number of examples done and the total.
    """
    if reference is not None:
        task.prepare_reference(reference, features)
    return task.evaluate(model, features, batch_size, progress=progress)


@torch.inference_mode()
def divergences(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    workers: Workers = ALONE,
) -> list[Divergence]:
    """Return the divergence of a model's outputs from those of a reference, for each small batch."""
    head, parts = task.head, []
    for _, batch in workers.share(task.batches(features, BATCH_SIZE, reference.device)):
        wanted = head.outputs(reference, batch)
        parts.append(head.divergence(model, head.outputs(model, batch), wanted, batch))
    return workers.gathered(parts)

"""Run a model over examples to evaluate it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from ziplm.errors import UsageError
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.heads import Batch


@contextmanager
def inference(model: PreTrainedModel) -> Iterator[None]:
    """Disable gradients and dropout for the duration; afterwards, restore the mode of every module."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in before:
            module.training = training


def evaluation_batches(
    task: Task,
    model: PreTrainedModel,
    features: Sequence[Features],
    batch_size: int,
    progress: Progress | None,
) -> Iterator[tuple[list[int], Batch]]:
    """Yield the batches of `Task.batches` on the model's device, and report progress after each.

    Raises:
        UsageError: if there are no examples, or the batch size is not positive.
    """
    if not len(features):
        raise UsageError("there are no examples to evaluate on", "give --validation-file or --eval-file")
    if batch_size < 1:
        raise UsageError(f"the batch size is {batch_size}", "give 1 or more")
    done = 0
    for chosen, batch in task.batches(features, batch_size, model.device):
        yield chosen, batch
        done += len(chosen)
        if progress is not None:
            progress(done, len(features))

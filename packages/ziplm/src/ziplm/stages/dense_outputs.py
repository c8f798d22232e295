"""The dense model's outputs, with which a run compares many models on the same samples."""

import torch
from transformers import PreTrainedModel

from ziplm.tasks.base import Task
from ziplm.tasks.finite import finite_outputs
from ziplm.tasks.heads import Batch, inputs_of

MOST_BYTES = 2**26


class DenseOutputs:
    """The outputs of a model for batches; those that are small, as a classifier's, are computed once.

    Searches, refits and reports of all targets ask for the same batches. Outputs of language models are not
    remembered beyond `MOST_BYTES` in all.

    Args:
        model: the model, whose weights must not change.
        task: the task, whose head reads the outputs.
    """

    def __init__(self, model: PreTrainedModel, task: Task) -> None:
        self.model = model
        self._task = task
        self._known: dict[tuple[tuple[str, torch.Size, bytes], ...], torch.Tensor] = {}
        self._bytes = 0

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return the outputs for a batch.

        Raises:
            NotFinite: if an output is not finite.
        """
        key = tuple(
            (name, value.shape, value.cpu().numpy().tobytes())
            for name, value in sorted(inputs_of(batch).items())
        )
        if key in self._known:
            return self._known[key]
        outputs = finite_outputs(self._task.head, self.model, batch)
        if self._bytes + outputs.nbytes <= MOST_BYTES:
            self._known[key] = outputs
            self._bytes += outputs.nbytes
        return outputs

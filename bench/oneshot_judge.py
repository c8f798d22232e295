"""Judging models: their metric, and their divergence from the dense model, on files of examples."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import ziplm
from transformers import PreTrainedModel
from ziplm.architectures.attention_trace import BranchTrace
from ziplm.architectures.base import Size
from ziplm.pipelines.values import Start
from ziplm.stages.shrink import shrink_to_sizes
from ziplm.tasks import Features, Source
from ziplm.tasks.heads import Classification

FEW = 1000  # samples of the last split on which single priors are compared
BATCH = 64


class Judge:
    """Judges models by their metric and their divergence from the dense model on every split.

    Args:
        start: the dense model, with its task and tokenizer.
        files: files of examples, by name of the split.
        most: number of samples to use of each split, from its beginning; None for all.
    """

    def __init__(self, start: Start, files: Mapping[str, str], most: int | None = None) -> None:
        self.dense, self.task = start.dense, start.task
        self.splits: dict[str, Sequence[Features]] = {}
        for name, file in files.items():
            source = Source(train_file=file, validation_file=file)
            length = start.options.data_length
            loaded = self.task.load_splits(start.dense, start.tokenizer, source, length)
            features = next(iter(loaded.evaluation.values()))
            self.splits[name] = _first(features, most or len(features))
        self._dense_outputs: dict[int, list[torch.Tensor]] = {}  # by number of samples

    def __call__(self, model: PreTrainedModel, few: bool = False) -> dict[str, float]:
        """Return the metric and the divergence on every split.

        With `few`, return only the divergence on the beginning of the last split, under a name of its own.
        """
        if few:
            chosen = _first(list(self.splits.values())[-1], FEW)
            divergence, _ = self.divergence(model, chosen)
            return {f"{list(self.splits)[-1]}, first {len(chosen)}: kl": divergence}
        found: dict[str, float] = {}
        for name, features in self.splits.items():
            divergence, accuracy = self.divergence(model, features)
            known = self.task.metric == "accuracy"
            metric = accuracy if known else self.task.evaluate(model, features, BATCH)[self.task.metric]
            found |= {f"{name} kl": divergence, f"{name} metric": metric}
        return found

    def shrunk(
        self, sizes: Sequence[Size], traces: Sequence[BranchTrace | None], few: bool = False
    ) -> dict[str, float]:
        """Judge the dense model with branches of these sizes."""
        return self(shrink_to_sizes(self.dense, sizes, traces), few)

    def checkpoint(self, folder: Path) -> dict[str, float]:
        """Judge a checkpoint."""
        return self(ziplm.load(folder))

    @torch.inference_mode()
    def divergence(self, model: PreTrainedModel, features: Sequence[Features]) -> tuple[float, float]:
        """Return the mean divergence from the dense model, and a classifier's accuracy from the same pass."""
        head, total, samples, right = self.task.head, 0.0, 0, 0
        known = self._dense_outputs.setdefault(len(features), [])
        for number, (_, batch) in enumerate(self.task.batches(features, BATCH)):
            if number == len(known):
                known.append(head.outputs(self.dense, batch))
            outputs = head.outputs(model, batch)
            part = head.divergence(model, outputs, self.dense, known[number], batch)
            total, samples = total + part.total, samples + part.samples
            if isinstance(head, Classification):
                right += int((outputs.argmax(-1) == batch["labels"]).sum())
        return total / samples, right / samples


def _first(features: Sequence[Features], count: int) -> list[Features]:
    return [features[place] for place in range(min(count, len(features)))]

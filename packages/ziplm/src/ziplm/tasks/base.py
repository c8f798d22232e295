"""The seam to tasks: where data comes from, how it becomes batches, and what it is judged by."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.heads import Batch, Head

Features = Mapping[str, Any]
"""One tokenised example: `input_ids`, `attention_mask`, … as lists, and labels if there are any."""

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


@dataclass(frozen=True)
class Source:
    """Where examples come from: files, or else the task's own data set by name."""

    train_file: str | None = None
    validation_file: str | None = None
    eval_file: str | None = None
    """To evaluate on something else."""
    text_columns: tuple[str, ...] = ()
    """One, or two for pairs; none: the task's own, or the first that is text."""
    label_column: str | None = None


@dataclass(frozen=True)
class Splits:
    """Tokenised data."""

    train: Sequence[Features]
    """To calibrate on, and to fine-tune on."""
    evaluation: Mapping[str, Sequence[Features]] = field(default_factory=dict)
    """What metrics are computed on, by name; the first is the main one."""


class Task(ABC):
    """What a model is for."""

    name: str
    head: Head
    metric: str
    """The main one of what `evaluate` returns."""
    greater_is_better: bool = True
    calibration_samples: ClassVar[int] = 2048

    @abstractmethod
    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """The model with this task's head, in eval mode; `ziplm.load` and its errors."""

    @abstractmethod
    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """Read and tokenise; raises UsageError with what is wrong with the data."""

    @abstractmethod
    def collate(self, features: Sequence[Features]) -> Batch:
        """Examples as one padded batch, labels included; same examples, same batch."""

    @abstractmethod
    def evaluate(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """All metrics of a model on one evaluation split."""

    def batches(
        self, features: Sequence[Features], batch_size: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of about equally long examples, and which examples they hold; always the same ones."""
        order = sorted(range(len(features)), key=lambda index: (len(features[index]["input_ids"]), index))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = self.collate([features[index] for index in chosen])
            yield chosen, {name: value.to(device) for name, value in batch.items()}

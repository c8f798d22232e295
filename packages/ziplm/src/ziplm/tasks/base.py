"""Interface of a task: where its data comes from, how batches are made, and which metrics judge a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.checkpoint import load_with_head, model_class_of, read_config
from ziplm.architectures.exported import home_of, open_model
from ziplm.architectures.tokenizers import load_tokenizer
from ziplm.errors import NotFinite, UsageError
from ziplm.options.source import Source
from ziplm.tasks.heads import IGNORED, LABELS, Batch, Head

Features = Mapping[str, Any]
"""One tokenised example: `input_ids`, `attention_mask`, … as lists, and its labels, if any."""

Progress = Callable[[int, int], None]
"""Callback that receives the amount of work done and the total, such as examples or layers."""

Predictions = dict[str, np.ndarray]
"""Arrays by name, from which metrics are computed; the first dimension is the examples of a split.

An example is a text, a pair, a sentence, a question or a window of text: the unit that intervals resample.
"""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Splits:
    """Tokenised training and evaluation data. Without training data, `train` is empty."""

    train: Sequence[Features]
    """Examples for calibration and fine-tuning."""
    evaluation: Mapping[str, Sequence[Features]] = field(default_factory=dict)
    """Examples to compute metrics on, by name of the split. The first split is the main one."""


class Task(ABC):
    """Purpose of a model: its data, its head and its metrics."""

    name: str
    head: Head
    metric: str
    """Name of the main metric among those that `evaluate` returns."""
    greater_is_better: bool = True
    proportions: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics that are a mean over examples of 0 or 1, such as accuracy."""
    dataset: str | None = None
    """Dataset on the hub, as ``name`` or ``name:config``, which is read if no files are given."""
    calibration_samples: ClassVar[int] = 2048
    labels_beside_teacher: ClassVar[float] = 0.0
    """Default weight of the task's own loss where a teacher is there."""
    class_endings: ClassVar[tuple[str, ...]]
    """Endings of the class names of models that have the head for this task."""
    padding_id: int = 0
    """Id of the token that `collate` pads with; set by `load_splits`."""

    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """Load a checkpoint or an exported file that has this task's head, in eval mode.

        Args:
            path: folder of the checkpoint, its name on the hub, or an exported file or a folder with one.
            options: options of `ziplm.load`.

        Raises:
            UsageError: if the checkpoint has a different head.
            ZipLMError: if the checkpoint cannot be loaded; see `ziplm.load`.
        """
        home = home_of(path)
        name = model_class_of(home, read_config(home)).__name__
        if not name.endswith(self.class_endings):
            raise UsageError(
                f"{path} is a {name}, but task {self.name} needs a class that ends with "
                f"{' or '.join(self.class_endings)}",
                "fine-tune the model for this task first (ziplm finetune), or choose the task it was "
                "fine-tuned for",
            )
        return open_model(path, **options)

    def load_pretrained(self, path: str, seed: int = 0, **options: Any) -> PreTrainedModel:
        """Load a model to fine-tune, with a new head if the checkpoint does not have this task's.

        The weights of a new head are random and depend only on the seed. Tasks that define no `new_head` need
        a checkpoint that has the right head, as for `load_model`.

        Args:
            path: folder of the checkpoint, or its name on the hub.
            seed: seed of the new head's weights.
            options: options of `ziplm.load`, or of transformers' `from_pretrained` if there is a new head.

        Raises:
            UsageError: if the checkpoint has a different head, and the task cannot make a new one.
            BadCheckpoint: if the checkpoint cannot be loaded with a new head.
        """
        found = self.new_head()
        if found is None or model_class_of(path, read_config(path)).__name__.endswith(self.class_endings):
            return self.load_model(path, **options)
        auto_class, settings = found
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return load_with_head(path, auto_class, settings, **options)

    def new_head(self) -> tuple[Any, dict[str, Any]] | None:
        """Return how to load a model with an untrained head for this task, or None if that is not supported.

        Returns:
            The Auto class of transformers, and settings for the model's config.
        """
        return None

    def new_head_for(self, source: Source) -> tuple[Any, dict[str, Any]] | None:
        """Return how to load a model with an untrained head for the labels of some data; see `new_head`."""
        return self.new_head()

    def load_tokenizer(self, path: str) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a checkpoint or an exported file, without running code from its folder.

        Raises:
            BadCheckpoint: if the tokenizer is missing or cannot be loaded.
        """
        return load_tokenizer(home_of(path))

    @abstractmethod
    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """Read and tokenise the data.

        Args:
            model: model that the examples are for.
            tokenizer: tokenizer of the model.
            source: where the data comes from.
            max_length: maximum number of tokens of an example.

        Raises:
            UsageError: if the data cannot be read, or does not fit the model or the task.
        """

    def collate(self, features: Sequence[Features]) -> Batch:
        """Return examples as one batch of tensors, padded on the right, with labels; deterministic."""
        width = max(len(feature["input_ids"]) for feature in features)
        fill = {"input_ids": self.padding_id, "attention_mask": 0, "token_type_ids": 0}
        batch = {}
        for name in (*INPUTS, *LABELS):
            if name not in features[0]:
                continue
            values = [feature[name] for feature in features]
            if not isinstance(values[0], int | float):
                padding = fill.get(name, IGNORED)
                values = [[*value, *[padding] * (width - len(value))] for value in values]
            batch[name] = torch.tensor(values)
        return batch

    @abstractmethod
    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """Run a model on one evaluation split, and return everything that its metrics depend on.

        Args:
            model: model to evaluate.
            features: examples of the split.
            batch_size: number of examples per forward pass.
            progress: called after each batch.

        Returns:
            Arrays with one row per example. The order of the examples is the same for every model.

        Raises:
            UsageError: if there are no examples, or the batch size is not positive.
            NotFinite: if an output of the model is not finite.
        """

    @abstractmethod
    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """Compute all metrics by name from the predictions on a split, or on any selection of its examples.

        Raises:
            NotFinite: if a metric is not finite.
        """

    @final
    def evaluate(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """Compute all metrics of a model on one evaluation split: `metrics_of` the result of `predict`.

        Args:
            model: model to evaluate.
            features: examples of the split.
            batch_size: number of examples per forward pass.
            progress: called after each batch.

        Returns:
            Metrics by name.

        Raises:
            UsageError: if there are no examples, or the batch size is not positive.
            NotFinite: if an output of the model, or a metric, is not finite.
        """
        return self.metrics_of(self.predict(model, features, batch_size, progress))

    def judged(self, model: PreTrainedModel, features: Sequence[Features]) -> float | None:
        """Return the main metric of a model on training examples; None if it cannot be computed from them."""
        if "labels" not in features[0]:
            return None
        try:
            return self.evaluate(model, features)[self.metric]
        except NotFinite:  # such as a correlation with predictions that are all the same
            return None

    def prepare_reference(self, model: PreTrainedModel, features: Sequence[Features]) -> None:  # noqa: B027
        """Give the dense model to a task whose metric compares with it. By default, do nothing."""

    def copy_extras(self, source: str | Path, target: str | Path) -> None:  # noqa: B027
        """Copy files of a checkpoint that belong to neither model nor tokenizer. By default, copy nothing."""

    def batches(
        self,
        features: Sequence[Features],
        batch_size: int,
        device: torch.device | str = "cpu",
        most_tokens: int | None = None,
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of similarly long examples, each with the indices of its examples; deterministic.

        The order of the examples depends neither on the batch size nor on `most_tokens`.

        Args:
            features: the examples.
            batch_size: largest number of examples in a batch.
            device: device of the batches.
            most_tokens: largest number of tokens in a batch of several examples, with padding.
        """
        lengths = [len(feature["input_ids"]) for feature in features]
        order = sorted(range(len(features)), key=lambda index: (lengths[index], index))
        chosen: list[int] = []
        for place, index in enumerate(order, start=1):
            chosen.append(index)
            following = lengths[order[place]] if place < len(order) else 0  # the longest if it is added
            full = most_tokens is not None and (len(chosen) + 1) * following > most_tokens
            if len(chosen) == batch_size or full or place == len(order):
                batch = self.collate([features[number] for number in chosen])
                yield chosen, {name: value.to(device) for name, value in batch.items()}
                chosen = []

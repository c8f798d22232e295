"""Texts, or pairs of texts, with a label: the part that all such tasks share, and the user's own files."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.heads import Classification, Head, Regression
from ziplm.tasks.base import Features, Progress, Source, Splits, Task
from ziplm.tasks.columns import (
    LABEL_NAMES,
    TEXT_NAMES,
    label_column,
    labels_of,
    model_labels,
    numbers_of,
    outputs_of,
    text_columns,
    texts_of,
)
from ziplm.tasks.encoding import Tokenised, check_fit, padding_token
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.inference import evaluation_batches, finite, inference
from ziplm.tasks.metrics import METRICS
from ziplm.tasks.reading import as_is, read_parts


class SequenceTask(Task):
    """A label or a number for a text or a pair of texts; the first of the metrics is the main one."""

    class_endings = ("ForSequenceClassification",)
    text_names: Sequence[Sequence[str]] = TEXT_NAMES
    label_names: Sequence[str] = LABEL_NAMES
    empty_texts: ClassVar[bool] = False
    """Whether data may hold empty texts."""

    def __init__(
        self, name: str, metrics: Sequence[str], dataset: str | None, regression: bool = False
    ) -> None:
        self.name = name
        self.dataset = dataset
        self.metrics = tuple(metrics)
        self.metric = self.metrics[0]
        self.regression = regression
        self.head: Head = Regression() if regression else Classification()

    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """See `Task.load_model`. Models that look for their padding token are told one if they have none."""
        model = super().load_model(path, **options)
        if model.config.pad_token_id is None and isinstance(model.config.eos_token_id, int):
            model.config.pad_token_id = model.config.eos_token_id
        return model

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Training examples are tokenised when they are asked for."""
        self.check_outputs(model)
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = self.read(source)
        encode = lambda table: self.encode(model, tokenizer, table, source, max_length)  # noqa: E731
        return Splits(
            encode(train) if train is not None else (),
            {name: encode(table).all() for name, table in evaluation.items()},
        )

    def read(self, source: Source) -> tuple[Table | None, dict[str, Table]]:
        """Training and evaluation data."""
        return read_parts(self.name, source, read_table, as_is, self.dataset)

    def encode(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        table: Table,
        source: Source,
        max_length: int,
        labelled: bool = True,
    ) -> Tokenised:
        """A table as features, with labels if they are wanted."""
        label = label_column(table, source.label_column, self.label_names) if labelled else None
        columns = text_columns(table, source.text_columns, self.text_names, label)
        check_fit(model, tokenizer, max_length, len(columns))
        others: dict[str, Sequence[Any]] = {}
        if label is not None:
            others["labels"] = self.labels(model, table, label)
        texts = [texts_of(table, column, self.empty_texts) for column in columns]
        return Tokenised(tokenizer, texts, max_length, others)

    def labels(self, model: PreTrainedModel, table: Table, column: str) -> Sequence[int] | Sequence[float]:
        """Labels as the model numbers them."""
        if self.regression:
            return numbers_of(table, column)
        return labels_of(table, column, model_labels(model), outputs_of(model))

    def check_outputs(self, model: PreTrainedModel) -> None:
        """Raise unless the model's head has as many outputs as the task needs."""
        if outputs_of(model) < 2:
            raise UsageError(
                f"the model has {outputs_of(model)} output, but task {self.name} needs one for a class",
                "give a model with a classification head",
            )

    def evaluate(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """See `Task.evaluate`."""
        predictions = self.numbered(model, self.predict(model, features, batch_size, progress))
        labels = self.numbered(model, np.array([feature["labels"] for feature in features]))
        return finite({name: METRICS[name](predictions, labels) for name in self.metrics})

    def numbered(self, model: PreTrainedModel, classes: np.ndarray) -> np.ndarray:
        """The model's classes by the numbers that metrics know: some tell class 1 from the others."""
        return classes

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Classes as the model numbers them, or numbers in float64, (examples,)."""
        predictions = np.zeros(len(features), dtype=np.float64 if self.regression else np.int64)
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                outputs: torch.Tensor = self.head.outputs(model, batch)  # (batch, classes)
                answers = outputs[:, 0].double() if self.regression else outputs.argmax(-1)
                predictions[chosen] = answers.cpu().numpy()
        return predictions


class ClassificationTask(SequenceTask):
    """The user's own data with a column of text, or two, and one of labels.

    Args:
        dataset: on the hub, as ``name`` or ``name:config``, used if no files are given.
    """

    def __init__(self, dataset: str | None = None) -> None:
        super().__init__("classification", ("accuracy", "macro_f1"), dataset)

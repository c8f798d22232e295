"""Classification of texts or pairs of texts: the base class of such tasks, and the task for user data."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import Features, Predictions, Progress, Splits, Task
from ziplm.tasks.columns import (
    LABEL_NAMES,
    TEXT_NAMES,
    classes_in,
    label_column,
    labels_of,
    model_labels,
    numbers_of,
    outputs_of,
    text_columns,
    texts_of,
)
from ziplm.tasks.encoding import Tokenised, padding_token, require_match
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.finite import finite, finite_outputs
from ziplm.tasks.heads import Classification, Head, Regression
from ziplm.tasks.inference import evaluation_batches, inference
from ziplm.tasks.metrics import METRICS
from ziplm.tasks.reading import as_is, read_parts

MULTI_LABEL = "multi_label_classification"
"""Problem type of models that predict for each label whether a text has it."""


class SequenceTask(Task):
    """Predict a class or a number for a text or a pair of texts.

    Args:
        name: name of the task.
        metrics: names of its metrics; the first is the main one.
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
        regression: whether the model predicts a number rather than a class.
    """

    class_endings = ("ForSequenceClassification",)
    text_names: Sequence[Sequence[str]] = TEXT_NAMES
    label_names: Sequence[str] = LABEL_NAMES
    proportions = ("accuracy",)
    empty_texts: ClassVar[bool] = False
    """Whether the data may contain empty texts."""

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
        """See `Task.load_model`. A model without a padding token gets its end-of-text token for padding.

        Raises:
            UsageError: also if the model predicts any number of labels for a text.
        """
        model = super().load_model(path, **options)
        self.require_one_label(model)
        if model.config.pad_token_id is None and isinstance(model.config.eos_token_id, int):
            model.config.pad_token_id = model.config.eos_token_id
        return model

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Training examples are tokenised on access."""
        self.require_one_label(model)
        self.check_outputs(model)
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = self.read(source)
        encode = lambda table: self.encode(model, tokenizer, table, source, max_length)  # noqa: E731
        return Splits(
            encode(train) if train is not None else (),
            {name: encode(table).all() for name, table in evaluation.items()},
        )

    def read(self, source: Source) -> tuple[Table | None, dict[str, Table]]:
        """Read the training data, or None, and the evaluation data by name of the split."""
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
        """Return the examples of a table, with labels if `labelled`."""
        label = label_column(table, source.label_column, self.label_names) if labelled else None
        columns = text_columns(table, source.text_columns, self.text_names, label)
        require_match(model, tokenizer, max_length, len(columns))
        others: dict[str, Sequence[Any]] = {}
        if label is not None:
            others["labels"] = self.labels(model, table, label)
        texts = [texts_of(table, column, self.empty_texts) for column in columns]
        return Tokenised(tokenizer, texts, max_length, others)

    def labels(self, model: PreTrainedModel, table: Table, column: str) -> Sequence[int] | Sequence[float]:
        """Return a column's labels in the model's numbering; for a regression, its numbers."""
        if self.regression:
            return numbers_of(table, column)
        return labels_of(table, column, model_labels(model), outputs_of(model))

    def check_outputs(self, model: PreTrainedModel) -> None:
        """Raise UsageError unless the model's head has as many outputs as the task needs."""
        if outputs_of(model) < 2:
            raise UsageError(
                f"the model has {outputs_of(model)} output, but task {self.name} needs one for each class",
                "give a model with a classification head",
            )

    def require_one_label(self, model: PreTrainedModel) -> None:
        """Raise UsageError if a text may have several labels, so that the largest output says too little."""
        if getattr(model.config, "problem_type", None) == MULTI_LABEL:
            raise UsageError(
                f"the model is a {MULTI_LABEL}, but task {self.name} needs one label for each text",
                "give a model that predicts a single label, since others are not supported",
            )

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """See `Task.predict`. Returns predictions and labels: classes in the task's numbering, or numbers."""
        predictions = self.numbered(model, self.outputs(model, features, batch_size, progress))
        labels = self.numbered(model, np.array([feature["labels"] for feature in features]))
        return {"predictions": predictions, "labels": labels}

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """See `Task.metrics_of`."""
        pair = predictions["predictions"], predictions["labels"]
        return finite({name: METRICS[name](*pair) for name in self.metrics})

    def numbered(self, model: PreTrainedModel, classes: np.ndarray) -> np.ndarray:
        """Convert classes from the model's numbering to the task's, which metrics such as F1 rely on."""
        return classes

    def outputs(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return the predicted classes in the model's numbering, or float64 numbers, of shape (examples,)."""
        predictions = np.zeros(len(features), dtype=np.float64 if self.regression else np.int64)
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                outputs: torch.Tensor = finite_outputs(self.head, model, batch)  # (batch, classes)
                answers = outputs[:, 0].double() if self.regression else outputs.argmax(-1)
                predictions[chosen] = answers.cpu().numpy()
        return predictions


class ClassificationTask(SequenceTask):
    """Classification of the user's own data: one or two columns of text, and one of labels.

    Args:
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
    """

    def __init__(self, dataset: str | None = None) -> None:
        super().__init__("classification", ("accuracy", "macro_f1"), dataset)

    def new_head_for(self, source: Source) -> tuple[Any, dict[str, Any]] | None:
        """See `Task.new_head_for`. The classes are the labels of the training data."""
        train, _ = self.read(source)
        if train is None:
            return None
        column = label_column(train, source.label_column, self.label_names)
        return AutoModelForSequenceClassification, classes_in(train, column) | {"problem_type": None}

"""The seam to tasks: where data comes from, how it becomes batches, and what it is judged by."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.checkpoint import load, model_class_of, read_config
from ziplm.errors import BadCheckpoint, UsageError, one_line
from ziplm.heads import IGNORED, LABELS, Batch, Head
from ziplm.network import from_hub

Features = Mapping[str, Any]
"""One tokenised example: `input_ids`, `attention_mask`, … as lists, and labels if there are any."""

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


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
    train: bool = True
    """Whether training examples are wanted at all."""

    @property
    def has_files(self) -> bool:
        """Whether any file is given; then all data comes from files."""
        return any((self.train_file, self.validation_file, self.eval_file))

    @property
    def evaluation_files(self) -> dict[str, str]:
        """The file to evaluate on, by the name of the split; none if none is given."""
        if self.eval_file:
            return {"eval": self.eval_file}
        return {"validation": self.validation_file} if self.validation_file else {}


@dataclass(frozen=True)
class Splits:
    """Tokenised data. What no file was given for is empty."""

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
    class_endings: ClassVar[tuple[str, ...]]
    """What the name of a model's class ends with if it has the head for this task."""
    padding_id: int = 0
    """The token that `collate` pads with; `load_splits` sets it."""

    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """The model with this task's head, in eval mode; `ziplm.load` and its errors.

        Raises:
            UsageError: if the checkpoint has another head.
        """
        name = model_class_of(path, read_config(path)).__name__
        if not name.endswith(self.class_endings):
            raise UsageError(
                f"{path} is a {name}, but task {self.name} needs one that ends with "
                f"{' or '.join(self.class_endings)}",
                "fine-tune the model for the task first, or choose the task that it was made for",
            )
        return load(path, **options)

    def load_pretrained(self, path: str, seed: int = 0, **options: Any) -> PreTrainedModel:
        """A model to fine-tune: as `load_model`, or with a new head if it has another and the task knows one.

        The new head's weights are random, and depend on the seed only.
        """
        found = self.new_head()
        if found is None or model_class_of(path, read_config(path)).__name__.endswith(self.class_endings):
            return self.load_model(path, **options)
        auto_class, settings = found
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model = auto_class.from_pretrained(path, **settings, **from_hub(path), **options)
            except (OSError, ValueError, RuntimeError) as error:
                raise BadCheckpoint(
                    f"{path} cannot be given a head for task {self.name}: {one_line(error)}",
                    "give a pretrained BERT",
                ) from error
        assert isinstance(model, PreTrainedModel)
        return model.eval()

    def new_head(self) -> tuple[Any, dict[str, Any]] | None:
        """The Auto class, and settings for the config, of a model that is yet to be trained for this task."""
        return None

    def load_tokenizer(self, path: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a checkpoint; no code from the folder is run."""
        if Path(path).is_dir() and not any((Path(path) / name).is_file() for name in VOCABULARIES):
            # Asked for it, transformers 5 would make one that knows no word.
            raise BadCheckpoint(
                f"{path} has no tokenizer", "save it beside the model: tokenizer.save_pretrained(folder)"
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **from_hub(path))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
            raise BadCheckpoint(
                f"the tokenizer of {path} cannot be loaded: {one_line(error)}",
                "save it beside the model again",
            ) from error
        assert isinstance(tokenizer, PreTrainedTokenizerBase)
        return tokenizer

    @abstractmethod
    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """Read and tokenise; raises UsageError with what is wrong with the data."""

    def collate(self, features: Sequence[Features]) -> Batch:
        """Examples as one batch, padded on the right, labels included; same examples, same batch."""
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
    def evaluate(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """All metrics of a model on one evaluation split."""

    def prepare_reference(self, model: PreTrainedModel, features: Sequence[Features]) -> None:  # noqa: B027
        """Show the dense model to a task whose metric compares with it; most do not."""

    def copy_extras(self, source: str | Path, target: str | Path) -> None:  # noqa: B027
        """Copy what a checkpoint of this task holds beside model and tokenizer; mostly nothing."""

    def batches(
        self, features: Sequence[Features], batch_size: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of about equally long examples, and which examples they hold; always the same ones."""
        order = sorted(range(len(features)), key=lambda index: (len(features[index]["input_ids"]), index))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = self.collate([features[index] for index in chosen])
            yield chosen, {name: value.to(device) for name, value in batch.items()}

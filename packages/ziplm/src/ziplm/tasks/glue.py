"""The tasks of GLUE, read from the published files or from the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.files import written_whole
from ziplm.options.source import Source
from ziplm.tasks.base import Features
from ziplm.tasks.classification import SequenceTask
from ziplm.tasks.columns import labels_of, model_labels, numbers_of, outputs_of
from ziplm.tasks.encoding import padding_token
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.hub import read_hub
from ziplm.tasks.reading import as_is, read_parts

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Spec:
    """Data format and metrics of one GLUE task."""

    title: str
    """Name of the task as GLUE spells it."""
    texts: tuple[tuple[str, ...], ...]
    """Names of the text columns: in the published files, then on the hub if they differ."""
    labels: tuple[str, ...]
    """Names of the classes in the order of GLUE; empty for a regression."""
    metrics: tuple[str, ...]
    label_column: str = "label"
    """Name of the label column in the published files; on the hub it is always "label"."""
    parts: tuple[str, ...] = ("",)
    """Suffixes of the names of the validation and test splits."""
    headerless: tuple[str, ...] = ()
    """Column names of the published files, if those have no header."""
    broken_rows: bool = False
    """Whether the published files contain rows with too few columns, which are skipped."""
    server_names: bool = False
    """Whether the GLUE server expects names of classes rather than numbers."""

    @property
    def server_files(self) -> tuple[str, ...]:
        """Names of the prediction files that the GLUE server accepts."""
        if len(self.parts) == 1:
            return (f"{self.title}.tsv",)
        return (f"{self.title}-m.tsv", f"{self.title}-mm.tsv")


ENTAILMENT = ("entailment", "not_entailment")
SPECS: Mapping[str, Spec] = {
    "cola": Spec(
        "CoLA",
        (("sentence",),),
        ("unacceptable", "acceptable"),
        ("matthews", "accuracy"),
        headerless=("source", "label", "star", "sentence"),
    ),
    "sst2": Spec("SST-2", (("sentence",),), ("negative", "positive"), ("accuracy",)),
    "mrpc": Spec(
        "MRPC",
        (("#1 String", "#2 String"), ("sentence1", "sentence2")),
        ("not_equivalent", "equivalent"),
        ("f1", "accuracy"),
        "Quality",
    ),
    "qqp": Spec(
        "QQP",
        (("question1", "question2"),),
        ("not_duplicate", "duplicate"),
        ("f1", "accuracy"),
        "is_duplicate",
        broken_rows=True,
    ),
    "stsb": Spec("STS-B", (("sentence1", "sentence2"),), (), ("spearman", "pearson"), "score"),
    "mnli": Spec(
        "MNLI",
        (("sentence1", "sentence2"), ("premise", "hypothesis")),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        "gold_label",
        parts=("_matched", "_mismatched"),
        server_names=True,
    ),
    "qnli": Spec("QNLI", (("question", "sentence"),), ENTAILMENT, ("accuracy",), server_names=True),
    "rte": Spec("RTE", (("sentence1", "sentence2"),), ENTAILMENT, ("accuracy",), server_names=True),
}


class GlueTask(SequenceTask):
    """One task of GLUE, read from files or from the hub.

    Files may have the published format, or any other that `read_table` reads.

    Args:
        name: a key of `SPECS`.
    """

    empty_texts = True  # the published files of QQP contain some

    def __init__(self, name: str) -> None:
        self.spec = SPECS[name]
        super().__init__(name, self.spec.metrics, f"{HUB}:{name}", regression=not self.spec.labels)
        self.text_names = self.spec.texts
        self.label_names = (self.spec.label_column, "label")

    def read(self, source: Source) -> tuple[Table | None, dict[str, Table]]:
        """See `SequenceTask.read`. With MNLI's dev_matched.tsv, dev_mismatched.tsv beside it is read, too."""
        files = source.evaluation_files
        if "validation" in files and (other := self._mismatched(files["validation"])):
            files = {"validation_matched": files["validation"], "validation_mismatched": other}
        splits = [f"validation{part}" for part in self.spec.parts]
        return read_parts(self.name, source, self._read_file, as_is, self.dataset, files, splits)

    def new_head(self) -> tuple[Any, dict[str, Any]]:
        """See `Task.new_head`. The classes have the names of GLUE."""
        names = dict(enumerate(self.spec.labels or ("score",)))
        numbers = {name: number for number, name in names.items()}
        settings = {"id2label": names, "label2id": numbers, "problem_type": None}
        return AutoModelForSequenceClassification, settings

    def load_test(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> dict[str, Sequence[Features]]:
        """Read and tokenise the test set, which has no labels.

        It is read from `eval_file` or `validation_file` of the source; with MNLI's test_matched.tsv,
        test_mismatched.tsv beside it is read, too. If no file is given, it is read from the hub.

        Returns:
            Examples by name of the prediction file that the GLUE server accepts.
        """
        self.check_outputs(model)
        self.padding_id = padding_token(model, tokenizer)
        given = source.eval_file or source.validation_file
        if given:
            tables = [read_table(file) for file in (given, self._mismatched(given)) if file]
        else:
            tables = [read_hub(f"{HUB}:{self.name}", f"test{part}") for part in self.spec.parts]
        encoded = [
            self.encode(model, tokenizer, table, source, max_length, labelled=False).all() for table in tables
        ]
        names = self.spec.server_files
        if given and "_mismatched" in Path(given).name:
            names = names[-1:]
        return dict(zip(names, encoded, strict=False))

    def write_predictions(
        self, model: PreTrainedModel, features: Sequence[Features], path: str | Path
    ) -> None:
        """Write predictions on a test set as the GLUE server expects them: index and prediction, in order."""
        predictions = self.outputs(model, features)
        if self.regression:
            answers = [f"{number:.3f}" for number in np.clip(predictions, 0, 5)]
        else:
            numbers = self.numbered(model, predictions)
            named = self.spec.server_names
            answers = [self.spec.labels[number] if named else str(number) for number in numbers]
        lines = ["index\tprediction", *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
        with written_whole(Path(path)) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def numbered(self, model: PreTrainedModel, classes: np.ndarray) -> np.ndarray:
        """See `SequenceTask.numbered`. The metrics use GLUE's numbering of the classes."""
        return classes if self.regression else np.argsort(self.order(model))[classes]

    def _mismatched(self, path: str) -> str | None:
        """Return MNLI's mismatched file beside a matched one, if there is one."""
        matched = Path(path)
        other = matched.with_name(matched.name.replace("_matched", "_mismatched"))
        return str(other) if len(self.spec.parts) > 1 and other != matched and other.is_file() else None

    def _read_file(self, path: str) -> Table:
        return read_table(path, self.spec.headerless, self.spec.broken_rows)

    def check_outputs(self, model: PreTrainedModel) -> None:
        """Raise UsageError unless the head has one output per class, or a single one for a regression."""
        needed = len(self.spec.labels) or 1
        if outputs_of(model) != needed:
            raise UsageError(
                f"the model has {outputs_of(model)} outputs, but task {self.name} needs {needed}",
                "give a model that was fine-tuned for this task",
            )

    def labels(self, model: PreTrainedModel, table: Table, column: str) -> Sequence[int] | Sequence[float]:
        """See `SequenceTask.labels`. Numbers in the data follow the order of GLUE."""
        if self.regression:
            return numbers_of(table, column)
        names = {name: number for number, name in enumerate(self.spec.labels)}
        order = self.order(model)
        return [order[number] for number in labels_of(table, column, names, len(names))]

    def order(self, model: PreTrainedModel) -> list[int]:
        """Return the model's number for each of GLUE's classes.

        They are matched by name. If the names of the model's classes are not those of GLUE, its numbering is
        assumed to be the same.
        """
        known = {name.lower(): number for name, number in model_labels(model).items()}
        if sorted(known) == sorted(self.spec.labels):
            return [known[name] for name in self.spec.labels]
        return list(range(len(self.spec.labels)))

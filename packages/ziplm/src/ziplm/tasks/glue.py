"""The tasks of GLUE: their files as published, their names on the hub, their metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.files import written_whole
from ziplm.tasks.base import Features, Source
from ziplm.tasks.classification import SequenceTask
from ziplm.tasks.columns import labels_of, model_labels, numbers_of, outputs_of
from ziplm.tasks.encoding import padding_token
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.hub import read_hub
from ziplm.tasks.reading import as_is, read_parts

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Spec:
    """What is particular about one of them."""

    title: str
    """As GLUE spells it."""
    texts: tuple[tuple[str, ...], ...]
    """Columns of text: in the published files, and on the hub if they differ there."""
    labels: tuple[str, ...]
    """Names of the classes in the order of GLUE; none for regression."""
    metrics: tuple[str, ...]
    label_column: str = "label"
    """In the published files; on the hub it is always "label"."""
    parts: tuple[str, ...] = ("",)
    """Endings of the names of the splits to evaluate on and to predict."""
    headerless: tuple[str, ...] = ()
    """Names of the columns of published files without a header."""
    broken_rows: bool = False
    """Whether published files hold rows with too few columns, which are left out."""
    server_names: bool = False
    """Whether the server wants names of classes, not numbers."""

    @property
    def server_files(self) -> tuple[str, ...]:
        """Names of the files that the server takes."""
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
    """One task of GLUE, from its files as published (or in other formats), or from the hub."""

    empty_texts = True  # the published files of QQP hold some

    def __init__(self, name: str) -> None:
        self.spec = SPECS[name]
        super().__init__(name, self.spec.metrics, f"{HUB}:{name}", regression=not self.spec.labels)
        self.text_names = self.spec.texts
        self.label_names = (self.spec.label_column, "label")

    def read(self, source: Source) -> tuple[Table | None, dict[str, Table]]:
        """See `SequenceTask.read`. Beside MNLI's dev_matched.tsv, dev_mismatched.tsv is read, too."""
        files = source.evaluation_files
        if "validation" in files and (other := self._mismatched(files["validation"])):
            files = {"validation_matched": files["validation"], "validation_mismatched": other}
        splits = [f"validation{part}" for part in self.spec.parts]
        return read_parts(self.name, source, self._read_file, as_is, self.dataset, files, splits)

    def new_head(self) -> tuple[Any, dict[str, Any]]:
        """See `Task.new_head`: classes by the names of GLUE."""
        names = dict(enumerate(self.spec.labels or ("score",)))
        numbers = {name: number for number, name in names.items()}
        return AutoModelForSequenceClassification, {"id2label": names, "label2id": numbers}

    def load_test(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> dict[str, Sequence[Features]]:
        """The test set without labels, by the names of the files that the GLUE server takes.

        It is `eval_file` or `validation_file`, and MNLI's test_mismatched.tsv beside test_matched.tsv.
        Without a file it is on the hub.
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
        """Predictions on a test set as a file that the GLUE server takes: index and prediction, in order."""
        predictions = self.predict(model, features)
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
        """See `SequenceTask.numbered`: GLUE's numbers."""
        return classes if self.regression else np.argsort(self.order(model))[classes]

    def _mismatched(self, path: str) -> str | None:
        """The file of MNLI's other genres that lies beside the one given, if there is one."""
        matched = Path(path)
        other = matched.with_name(matched.name.replace("_matched", "_mismatched"))
        return str(other) if len(self.spec.parts) > 1 and other != matched and other.is_file() else None

    def _read_file(self, path: str) -> Table:
        return read_table(path, self.spec.headerless, self.spec.broken_rows)

    def check_outputs(self, model: PreTrainedModel) -> None:
        """Raise unless the model's head has as many outputs as the task has classes, or one for a number."""
        needed = len(self.spec.labels) or 1
        if outputs_of(model) != needed:
            raise UsageError(
                f"the model has {outputs_of(model)} outputs, but task {self.name} needs {needed}",
                "give a model that was fine-tuned for it",
            )

    def labels(self, model: PreTrainedModel, table: Table, column: str) -> Sequence[int] | Sequence[float]:
        """Labels as the model numbers them; numbers in the data are in the order of GLUE."""
        if self.regression:
            return numbers_of(table, column)
        names = {name: number for number, name in enumerate(self.spec.labels)}
        order = self.order(model)
        return [order[number] for number in labels_of(table, column, names, len(names))]

    def order(self, model: PreTrainedModel) -> list[int]:
        """The model's number for each of GLUE's classes.

        It is the same if the model does not name its classes, or names them in its own way.
        """
        known = {name.lower(): number for name, number in model_labels(model).items()}
        if sorted(known) == sorted(self.spec.labels):
            return [known[name] for name in self.spec.labels]
        return list(range(len(self.spec.labels)))

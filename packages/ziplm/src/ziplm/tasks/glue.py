"""The tasks of GLUE: their files as published, their names on the hub, their metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from ziplm.errors import UsageError
from ziplm.tasks.base import Source
from ziplm.tasks.classification import SequenceTask
from ziplm.tasks.columns import labels_of, model_labels, numbers_of, outputs_of
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.hub import read_hub

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Spec:
    """What is particular about one of them."""

    title: str
    """As GLUE spells it; predictions go to the server as a file of that name."""
    texts: tuple[tuple[str, ...], ...]
    """Columns of text: in the published files, and on the hub if they differ there."""
    labels: tuple[str, ...]
    """Names of the classes in the order of GLUE; none for regression."""
    metrics: tuple[str, ...]
    label_column: str = "label"
    """In the published files; on the hub it is always "label"."""
    validation: tuple[str, ...] = ("validation",)
    headerless: tuple[str, ...] = ()
    """Names of the columns of published files without a header."""
    broken_rows: bool = False
    """Whether published files hold rows with too few columns, which are left out."""


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
        validation=("validation_matched", "validation_mismatched"),
    ),
    "qnli": Spec("QNLI", (("question", "sentence"),), ENTAILMENT, ("accuracy",)),
    "rte": Spec("RTE", (("sentence1", "sentence2"),), ENTAILMENT, ("accuracy",)),
}


class GlueTask(SequenceTask):
    """One task of GLUE, from its files as published (or in other formats), or from the hub."""

    empty_texts = True  # the published files of QQP hold some

    def __init__(self, name: str) -> None:
        self.spec = SPECS[name]
        super().__init__(name, self.spec.metrics, regression=not self.spec.labels)
        self.text_names = self.spec.texts
        self.label_names = (self.spec.label_column, "label")

    def read(self, source: Source) -> tuple[Table | None, dict[str, Table]]:
        """See `SequenceTask.read`. Beside MNLI's dev_matched.tsv, dev_mismatched.tsv is read, too."""
        if not source.has_files:
            evaluation = {split: read_hub(HUB, self.name, split) for split in self.spec.validation}
            return read_hub(HUB, self.name, "train"), evaluation
        train = self._read_file(source.train_file) if source.train_file else None
        files = source.evaluation_files
        if len(self.spec.validation) == 2 and "validation" in files:
            matched = Path(files["validation"])
            other = matched.with_name(matched.name.replace("_matched", "_mismatched"))
            if other != matched and other.is_file():
                files = dict(zip(self.spec.validation, map(str, (matched, other)), strict=True))
        return train, {name: self._read_file(file) for name, file in files.items()}

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

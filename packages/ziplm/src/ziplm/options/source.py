"""Where a task's examples come from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Files with examples; if none is given, the task loads its own dataset by name.

    Attributes:
        train_file: examples to calibrate and to fine-tune on.
        validation_file: examples to evaluate on.
        eval_file: other examples to evaluate on instead.
        text_columns: names of one text column, or of two for pairs; () lets the task choose.
        label_column: name of the column with labels; None lets the task choose.
        train: whether training examples are needed at all.
    """

    train_file: str | None = None
    validation_file: str | None = None
    eval_file: str | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    train: bool = True

    @property
    def has_files(self) -> bool:
        """Whether any file is given; then all data comes from files."""
        return any((self.train_file, self.validation_file, self.eval_file))

    @property
    def evaluation_files(self) -> dict[str, str]:
        """The file to evaluate on by the name of its split; empty if none is given."""
        if self.eval_file:
            return {"eval": self.eval_file}
        return {"validation": self.validation_file} if self.validation_file else {}

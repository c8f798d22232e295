"""Find the text and label columns of a table, and check their values."""

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedModel

from ziplm.errors import BadCheckpoint, UsageError
from ziplm.tasks.files import Table

TEXT_NAMES = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text",),
    ("sentence",),
)
MOST_CLASSES = 10_000
LABEL_NAMES = ("label", "labels", "class", "target", "category")


class UnknownLabel(UsageError):
    """Data with a label that the model's head does not have."""


def require_columns(table: Table, names: Iterable[str], option: str) -> None:
    """Raise UsageError unless the table has all these columns; the hint says to give `option`."""
    for name in names:
        if name not in table.columns:
            raise UsageError(
                f"{table.where} has no column {name!r}, only {', '.join(table.columns)}",
                f"give {option}",
            )


def text_columns(
    table: Table, wanted: Sequence[str], usual: Sequence[Sequence[str]], label: str | None
) -> tuple[str, ...]:
    """Choose one or two text columns.

    Args:
        table: the table.
        wanted: columns that the user named; if empty, one of the usual combinations is chosen.
        usual: usual names, one tuple per combination; the first that the table has is taken. If it has none,
            the first column of text is taken.
        label: label column, which is never chosen as text.

    Raises:
        UsageError: if a wanted column is missing, more than two are wanted, or the table has no text.
    """
    if len(wanted) > 2:
        raise UsageError(
            f"{len(wanted)} text columns are given ({', '.join(wanted)})", "give one, or two for pairs"
        )
    if wanted:
        require_columns(table, wanted, "the right name with --text-column")
        return tuple(wanted)
    for names in usual:
        if all(name in table.columns for name in names):
            return tuple(names)
    for name, values in table.columns.items():
        if name != label and isinstance(values[0], str):
            return (name,)
    raise UsageError(f"{table.where} has no column of text, only {', '.join(table.columns)}", "add one")


def label_column(table: Table, wanted: str | None, usual: Sequence[str]) -> str:
    """Return the label column: the wanted one if given, otherwise the first of the usual ones that exists.

    Raises:
        UsageError: if the table has no such column.
    """
    if wanted:
        require_columns(table, [wanted], "the right name with --label-column")
        return wanted
    for name in usual:
        if name in table.columns:
            return name
    raise UsageError(
        f"{table.where} has no column {' or '.join(usual)}, only {', '.join(table.columns)}",
        "name the one that holds the labels with --label-column",
    )


def texts_of(table: Table, column: str, allow_empty: bool = False) -> list[str]:
    """Return a column of texts; raise UsageError if a value is not text, or empty unless `allow_empty`."""
    values = table.columns[column]
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str) or not (allow_empty or value.strip()):
            raise UsageError(
                f"row {number} of {table.where} has {value!r} in column {column!r}, where a text is needed",
                "give every row a text, or leave the row out",
            )
    return values


def labels_of(table: Table, column: str, names: dict[str, int], classes: int) -> list[int]:
    """Return a column of labels as class numbers.

    Labels that are names are looked up in `names`, ignoring case. Labels that are numbers are kept, unless
    the table names its own classes and `names` has all of those names: then numbers are translated by name.

    Args:
        table: the table.
        column: its label column.
        names: number of each class, by name.
        classes: number of classes.

    Raises:
        UnknownLabel: if a label is neither a known name nor a number from 0 to `classes` − 1.
    """
    known = {name.lower(): number for name, number in names.items()}
    own = [name.lower() for name in table.classes.get(column, [])]
    meaning = [known[name] for name in own] if known.keys() >= set(own) else []
    numbers = []
    for row, value in enumerate(table.columns[column], start=1):
        number = known.get(value.lower()) if isinstance(value, str) else None
        number = _whole_number(value) if number is None else number
        if isinstance(value, int) and 0 <= value < len(meaning):
            number = meaning[value]
        if number is None or not 0 <= number < classes:
            raise UnknownLabel(
                f"row {row} of {table.where} has the label {value!r}, but the model knows 0 to "
                f"{classes - 1} ({', '.join(sorted(names, key=lambda name: names[name]))})",
                "correct the label, or label2id in the config.json of the model",
            )
        numbers.append(number)
    return numbers


def classes_in(table: Table, column: str) -> dict[str, Any]:
    """Return the settings of a config for a head with the labels of a column, as `labels_of` reads them.

    Classes that the table names itself keep their order, names are sorted, and whole numbers stay what they
    are.

    Raises:
        UsageError: if a label is neither text nor a whole number, or if there are fewer than two classes.
    """
    names = list(table.classes.get(column, [])) or _class_names(table, column)
    if len(names) < 2:
        raise UsageError(
            f"column {column!r} of {table.where} has {len(names)} class",
            "give examples of two classes or more",
        )
    return {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}


def _class_names(table: Table, column: str) -> list[str]:
    values = table.columns[column]
    numbers = [_whole_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) == len(values) and min(known, default=0) >= 0 and max(known, default=0) < MOST_CLASSES:
        return [str(number) for number in range(max(known, default=-1) + 1)]
    for row, value in enumerate(values, start=1):
        if not isinstance(value, str) or not value.strip():
            raise UsageError(
                f"row {row} of {table.where} has the label {value!r}",
                f"give names, or whole numbers from 0 to {MOST_CLASSES - 1}",
            )
    found = {value.lower(): value for value in reversed(values)}  # of several spellings, the first
    return [found[name] for name in sorted(found)]


def numbers_of(table: Table, column: str) -> list[float]:
    """Return a column of numbers as floats; raise UsageError if a value is not a finite number."""
    numbers = []
    for row, value in enumerate(table.columns[column], start=1):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise UsageError(
                f"row {row} of {table.where} has {value!r} in column {column!r}, which is not a number",
                "give a finite number in every row",
            )
        numbers.append(number)
    return numbers


def model_labels(model: PreTrainedModel) -> dict[str, int]:
    """Return the model's class numbers by name; raise BadCheckpoint if they are not numbers."""
    found = model.config.label2id or {}
    if not isinstance(found, dict):
        raise BadCheckpoint(
            f"label2id in the config of the model is {found!r:.40}", "give the number of every class by name"
        )
    numbers = {str(name): _whole_number(number) for name, number in found.items()}
    if wrong := [name for name, number in numbers.items() if number is None]:
        raise BadCheckpoint(
            f"label2id in the config of the model has {found[wrong[0]]!r:.40} for the class {wrong[0]!r:.40}",
            "give every class a whole number in config.json",
        )
    return {name: number for name, number in numbers.items() if number is not None}


def outputs_of(model: PreTrainedModel) -> int:
    """Return the number of outputs of the model's head."""
    return int(model.config.num_labels or 0)


def _whole_number(value: Any) -> int | None:
    """Convert 1, 1.0, "1" and True to 1; return None for anything that is not a whole number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None

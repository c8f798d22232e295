"""Read training and evaluation data from files, or from a dataset on the hub."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.files import Table
from ziplm.tasks.hub import read_hub

T = TypeVar("T")


def read_parts(
    task: str,
    source: Source,
    read: Callable[[str], T],
    convert: Callable[[Table], T],
    dataset: str | None,
    evaluation_files: Mapping[str, str] | None = None,
    evaluation_splits: Sequence[str] = ("validation",),
) -> tuple[T | None, dict[str, T]]:
    """Read training and evaluation data.

    Args:
        task: name of the task, for error messages.
        source: where the data comes from. If it names any file, all data comes from files.
        read: reads a file into the type that the task needs.
        convert: converts a table of the hub to the same type.
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
        evaluation_files: evaluation files by name of the split; None takes those of the source.
        evaluation_splits: evaluation splits of the dataset on the hub.

    Returns:
        The training data, or None if there is none or it is not wanted, and the evaluation data by name of
        the split.

    Raises:
        UsageError: if neither files nor a dataset are given, or they cannot be read.
    """
    if source.has_files:
        files = source.evaluation_files if evaluation_files is None else evaluation_files
        train = read(source.train_file) if source.train_file and source.train else None
        return train, {name: read(file) for name, file in files.items()}
    if dataset is None:
        raise UsageError(
            f"task {task} has no data of its own",
            "give --train-file and --validation-file, or the setting dataset=NAME:CONFIG",
        )
    train = convert(read_hub(dataset, "train")) if source.train else None
    return train, {split: convert(read_hub(dataset, split)) for split in evaluation_splits}


def as_is(table: Table) -> Table:
    """Return the table unchanged; the `convert` of tasks that work on tables."""
    return table

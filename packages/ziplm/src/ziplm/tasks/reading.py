"""Training and evaluation data from wherever the user says: files, or a data set by its name."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ziplm.errors import UsageError
from ziplm.tasks.base import Source
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
    """What to train on, if anything, and what to evaluate on, by name.

    Args:
        task: its name, for messages.
        source: if it names any file, all comes from files.
        read: makes of a file what is wanted.
        convert: makes the same of a table.
        dataset: on the hub, as ``name`` or ``name:config``, used if there are no files.
        evaluation_files: by name, if they are others than the source says.
        evaluation_splits: of the data set on the hub.
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
    """For tasks that want the table itself."""
    return table

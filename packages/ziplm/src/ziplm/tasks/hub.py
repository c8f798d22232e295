"""Data sets by their names on the hub, or in the local cache if there is no network."""

from collections.abc import Iterator
from contextlib import contextmanager

import datasets

from ziplm.errors import UsageError, one_line
from ziplm.network import hub_answers
from ziplm.tasks.files import Table


def read_hub(title: str, split: str) -> Table:
    """One split of a data set, given as ``name`` or ``name:config``; no code of the data set is run.

    Without a network, what is in the local cache is used at once, without the half minute of retries.

    Raises:
        UsageError: if it cannot be had.
    """
    name, _, config = title.partition(":")
    with _offline_unless_reachable() as reachable:
        try:
            data = datasets.load_dataset(name, config or None, split=split)
        except (
            ConnectionError,
            datasets.exceptions.DatasetsError,
            ValueError,
            OSError,
            RuntimeError,
        ) as error:
            if not reachable:
                raise UsageError(
                    f"there is no network, and {title} ({split}) is not in the local cache",
                    "give --train-file and --validation-file",
                ) from error
            raise UsageError(
                f"the data set {title} has no split {split}, or cannot be loaded: {one_line(error)}",
                "check its name, or give --train-file and --validation-file",
            ) from error
    kinds = {name: getattr(kind, "feature", kind) for name, kind in data.features.items()}  # or lists of it
    classes = {name: kind.names for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)}
    return Table(f"{title} ({split})", data.to_dict(), classes)


@contextmanager
def _offline_unless_reachable() -> Iterator[bool]:
    """Whether the hub answers; while it does not, `datasets` is told so."""
    reachable = not datasets.config.HF_HUB_OFFLINE and hub_answers()
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        datasets.config.HF_HUB_OFFLINE = before

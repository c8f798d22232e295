"""Read datasets from the hub, or from the local cache if there is no network."""

from collections.abc import Iterator
from contextlib import contextmanager

import datasets

from ziplm.architectures.network import hub_answers
from ziplm.architectures.untrusted import reported
from ziplm.errors import UsageError
from ziplm.tasks.files import Table


def read_hub(title: str, split: str) -> Table:
    """Read one split of a dataset, without running code of the dataset.

    Without a network, the local cache is used immediately, rather than after half a minute of retries.

    Args:
        title: name of the dataset, as ``name`` or ``name:config``.
        split: name of the split.

    Raises:
        UsageError: if the dataset or the split cannot be loaded.
    """
    name, _, config = title.partition(":")
    with _offline_unless_reachable() as reachable:
        failed = f"the dataset {title} has no split {split}, or cannot be loaded"
        if not reachable:
            failed = f"there is no network, and {title} ({split}) is not in the local cache"
        with reported(failed, "check the name, or give --train-file and --validation-file", UsageError):
            data = datasets.load_dataset(name, config or None, split=split)
            columns = data.to_dict()
    # For a column of lists, `feature` is the kind of the elements.
    kinds = {name: getattr(kind, "feature", kind) for name, kind in data.features.items()}
    classes = {name: kind.names for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)}
    return Table(f"{title} ({split})", columns, classes)


@contextmanager
def _offline_unless_reachable() -> Iterator[bool]:
    """Yield whether the hub is reachable; if not, put `datasets` into offline mode for the duration."""
    reachable = not datasets.config.HF_HUB_OFFLINE and hub_answers()
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        datasets.config.HF_HUB_OFFLINE = before

"""On-disk cache of a teacher's logits, so that each example is computed once rather than every epoch."""

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_log = logging.getLogger(__name__)

Row = tuple[Tensor, ...]  # one example's logits: a single tensor, or a pair of start and end logits


class LogitsCache:
    """Folder of safetensors files, one per batch written; files are never modified.

    Each file records a fingerprint of the teacher's weights. Opening a folder written with other weights
    raises an error, because training on the wrong logits would go unnoticed. An unreadable file is logged and
    skipped; its examples are computed again. Several processes may write to the same folder; each of them
    sees the files that existed when it opened the folder, and its own.

    Args:
        folder: where the files are; created if it does not exist.
        fingerprint: digest of the teacher's weights.

    Raises:
        ValueError: the folder holds logits of another teacher.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fingerprint = fingerprint
        self._index: dict[str, tuple[Path, int]] = {}  # example -> its file and its number of tensors
        for path in sorted(folder.glob("*.safetensors")):
            self._add_to_index(path)

    def __contains__(self, example: str) -> bool:
        return example in self._index

    def read(self, examples: Sequence[str]) -> list[Row] | None:
        """Return the logits of all these examples, or None if any of them is missing."""
        if not all(example in self for example in examples):
            return None
        rows = []
        for example in examples:
            path, count = self._index[example]
            try:
                with safe_open(path, framework="pt") as file:
                    rows.append(tuple(file.get_tensor(f"{example}/{number}") for number in range(count)))
            except (SafetensorError, OSError) as error:
                self._skip(path, error)
                return None
        return rows

    def write(self, rows: Mapping[str, Row]) -> None:
        """Write the logits of these examples to a new file, atomically; write no file if there are none."""
        if not rows:
            return
        name = uuid.uuid4().hex
        target, temporary = self._folder / f"{name}.safetensors", self._folder / f"{name}.tmp"
        tensors = {
            # Rows of one batch share memory, which safetensors does not accept.
            f"{example}/{number}": tensor.cpu().clone()
            for example, row in rows.items()
            for number, tensor in enumerate(row)
        }
        try:
            save_file(tensors, temporary, metadata={"teacher": self._fingerprint})
            temporary.replace(target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        self._index |= {example: (target, len(row)) for example, row in rows.items()}

    def _add_to_index(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                teacher = (file.metadata() or {}).get("teacher")
                names = list(file.keys())
        except (SafetensorError, OSError) as error:
            self._skip(path, error)
            return
        if teacher != self._fingerprint:
            raise ValueError(
                f"the cache {self._folder} holds logits of other weights or another dtype: {path.name} was "
                f"written by teacher {teacher}, this teacher is {self._fingerprint}; "
                "use another folder, or delete this one"
            )
        counts = Counter(name.rpartition("/")[0] for name in names)
        self._index |= {example: (path, count) for example, count in counts.items()}

    def _skip(self, path: Path, error: Exception) -> None:
        _log.warning(
            "cannot read %s (%s); its examples will be computed again, and the file can be deleted",
            path,
            error,
        )
        self._index = {example: entry for example, entry in self._index.items() if entry[0] != path}

"""Logits on disk, by example: what a teacher said once, it need not say again in the next epoch."""

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

Row = tuple[Tensor, ...]  # the logits of one example: one tensor, or the start's and the end's


class LogitsCache:
    """A folder of safetensors files, one for each batch that was written, none ever changed.

    Each file names the weights it came from. One of other weights is refused: training on the wrong logits
    would go unnoticed. One that cannot be read is reported to the log and passed over: its examples are
    computed again. Several processes may write to the same folder; each sees the files that were there
    when it started.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fingerprint = fingerprint
        self._places: dict[str, tuple[Path, int]] = {}  # example -> its file, its number of tensors
        for path in sorted(folder.glob("*.safetensors")):
            self._index(path)

    def __contains__(self, example: str) -> bool:
        return example in self._places

    def read(self, examples: Sequence[str]) -> list[Row] | None:
        """The logits of these examples, or None if those of any are missing."""
        if not all(example in self for example in examples):
            return None
        rows = []
        for example in examples:
            path, parts = self._places[example]
            try:
                with safe_open(path, framework="pt") as file:
                    rows.append(tuple(file.get_tensor(f"{example}/{part}") for part in range(parts)))
            except (SafetensorError, OSError) as error:
                self._pass_over(path, error)
                return None
        return rows

    def write(self, rows: Mapping[str, Row]) -> None:
        """Add a file with the logits of these examples, if any; it appears whole or not at all."""
        if not rows:
            return
        name = uuid.uuid4().hex
        target, temporary = self._folder / f"{name}.safetensors", self._folder / f"{name}.tmp"
        tensors = {
            f"{example}/{part}": tensor.cpu().clone()  # rows of one batch share memory, which is refused
            for example, row in rows.items()
            for part, tensor in enumerate(row)
        }
        try:
            save_file(tensors, temporary, metadata={"teacher": self._fingerprint})
            temporary.replace(target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        self._places |= {example: (target, len(row)) for example, row in rows.items()}

    def _index(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                teacher = (file.metadata() or {}).get("teacher")
                names = list(file.keys())
        except (SafetensorError, OSError) as error:
            self._pass_over(path, error)
            return
        if teacher != self._fingerprint:
            raise ValueError(
                f"the cache {self._folder} holds logits of other weights, or of these in another dtype: "
                f"{path.name} names {teacher}, this is {self._fingerprint}; use another folder, or delete it"
            )
        parts = Counter(name.rpartition("/")[0] for name in names)
        self._places |= {example: (path, count) for example, count in parts.items()}

    def _pass_over(self, path: Path, error: Exception) -> None:
        _log.warning(
            "cannot read %s (%s); its examples are computed again, the file can be deleted", path, error
        )
        self._places = {example: place for example, place in self._places.items() if place[0] != path}

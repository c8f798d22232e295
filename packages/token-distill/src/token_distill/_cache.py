"""On-disk cache of a teacher's logits, so that each example is computed once rather than every epoch."""

import logging
import os
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_log = logging.getLogger(__name__)

Row = tuple[Tensor, ...]  # one example's logits: a single tensor, or a pair of start and end logits

_FLOATS = ("F64", "F32", "F16", "BF16")  # names of the dtypes in a safetensors header


class _Kind(NamedTuple):
    """Shape and data type that the logits of all examples of one teacher share."""

    tensors: int  # 1, or 2 for spans
    dtype: str  # name in the safetensors header
    dimensions: int  # of one example's logits
    classes: int | None  # size of the last dimension; None for spans, whose last dimension is tokens


class _Entry(NamedTuple):
    """Where an example's logits are."""

    path: Path
    kind: _Kind


class LogitsCache:
    """Folder of safetensors files, one per batch written; files are never modified.

    Each file records a fingerprint of the teacher's weights. Opening a folder written with other weights
    raises an error, because training on the wrong logits would go unnoticed. An unreadable or damaged file is
    logged and skipped; its examples are computed again. Several processes may write to the same folder; each
    of them sees the files that existed when it opened the folder, and its own.

    Args:
        folder: where the files are; created if it does not exist.
        fingerprint: digest of the teacher's weights.

    Raises:
        ValueError: the folder holds logits of another teacher.
        OSError: the folder cannot be created or read.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fingerprint = fingerprint
        self._index: dict[str, _Entry] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._add_to_index(path)

    def __contains__(self, example: str) -> bool:
        return example in self._index

    def read(self, examples: Sequence[str]) -> list[Row] | None:
        """Return the logits of all these examples, or None if any of them is missing or damaged."""
        if not all(example in self for example in examples):
            return None
        entries = [self._index[example] for example in examples]
        if len({entry.kind for entry in entries}) > 1:  # at least one of the files is damaged
            for path in {entry.path for entry in entries}:
                self._skip(path, "its logits and those of other files differ in dtype or shape")
            return None
        rows = []
        for example, (path, kind) in zip(examples, entries, strict=True):
            try:
                with safe_open(path, framework="pt") as file:
                    row = tuple(file.get_tensor(f"{example}/{number}") for number in range(kind.tensors))
            except (SafetensorError, OSError) as error:
                self._skip(path, error)
                return None
            if any(tensor.isnan().any() for tensor in row):
                self._skip(path, "its logits are nan")
                return None
            rows.append(row)
        return rows

    def write(self, rows: Mapping[str, Row]) -> None:
        """Write the logits of these examples to a new file, atomically; write no file if there are none."""
        if not rows:
            return
        target = self._folder / f"{uuid.uuid4().hex}.safetensors"
        tensors = {
            # Rows of one batch share memory, which safetensors does not accept.
            f"{example}/{number}": tensor.cpu().clone()
            for example, row in rows.items()
            for number, tensor in enumerate(row)
        }
        _write_durably(target, save(tensors, metadata={"teacher": self._fingerprint}))
        self._add_to_index(target)

    def _add_to_index(self, path: Path) -> None:
        """Add the examples of a file, reading only its header."""
        try:
            if not path.is_file():  # opening a named pipe would wait for ever
                raise OSError("not a regular file")
            with safe_open(path, framework="pt") as file:
                teacher = (file.metadata() or {}).get("teacher")
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                headers = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        except (SafetensorError, OSError) as error:
            self._skip(path, error)
            return
        if teacher != self._fingerprint:
            raise ValueError(
                f"the cache {self._folder} holds logits of other weights or another dtype: {path.name} was "
                f"written by teacher {str(teacher)[:32]!r}, this teacher is {self._fingerprint!r}; "
                "use another folder, or delete this one"
            )
        kinds = _kinds(headers)
        if kinds is None:
            self._skip(path, "its tensors cannot be logits")
        else:
            self._index |= {example: _Entry(path, kind) for example, kind in kinds.items()}

    def _skip(self, path: Path, reason: object) -> None:
        _log.warning(
            "cannot read %s (%.200s); its examples will be computed again, and the file can be deleted",
            path,
            reason,
        )
        self._index = {example: entry for example, entry in self._index.items() if entry.path != path}


def _kinds(headers: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, _Kind] | None:
    """Return the kind of each example's logits, or None if the tensors of a file cannot be logits.

    Args:
        headers: dtype and shape of each tensor, named "<example>/0", or "<example>/1" for end logits.
    """
    examples: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = defaultdict(dict)
    for name, header in headers.items():
        example, _, number = name.rpartition("/")
        examples[example][number] = header
    kinds = {}
    for example, tensors in examples.items():
        dtype, shape = tensors.get("0", ("", ()))
        span = len(tensors) == 2
        if dtype not in _FLOATS or len(shape) > 2 or tensors.keys() - {"0", "1"}:
            return None
        if span and (len(shape) != 1 or tensors.get("1") != (dtype, shape)):
            return None
        classes = None if span or not shape else shape[-1]
        kinds[example] = _Kind(len(tensors), dtype, len(shape), classes)
    return kinds


def _write_durably(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it; both survive a loss of power."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.ziplm-partial")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name != "nt":  # folders cannot be opened on Windows
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

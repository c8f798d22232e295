"""Safetensors files of this package: written completely or not at all, and checked before they are read.

A file holds tensors, and numbers and names as one JSON object in the metadata. Everything that its header
says, shapes and dtypes included, is checked before a tensor is loaded, so a damaged file cannot make the
reader allocate more than a few times the size of the file.
"""

import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch

from obs_structured._checks import shortened
from obs_structured._header import Damaged, Header

Checked = TypeVar("Checked")
Decoded = TypeVar("Decoded")


def write(path: Path, form: str, tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> None:
    """Write a file atomically and durably: under a temporary name first, which then replaces `path`.

    Args:
        path: file to write.
        form: name of the format, which `read` asks for.
        tensors: contiguous tensors by name.
        scalars: numbers, booleans and strings by name.
    """
    content = safetensors.torch.save(tensors, {"format": form, "scalars": json.dumps(scalars)})
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
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable, where the system can do so (Windows cannot)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(
    path: str | os.PathLike[str],
    form: str,
    noun: str,
    device: torch.device | str,
    check: Callable[[Header], Checked],
    decode: Callable[[Checked, dict[str, torch.Tensor]], Decoded],
) -> Decoded:
    """Read a file, loading its tensors only after its header has been checked.

    Args:
        path: file to read.
        form: name of the format that the file must have.
        noun: what the file holds, for error messages: "trace".
        device: device to put the tensors on.
        check: gets the header, and raises Damaged if the file cannot be used.
        decode: gets the result of `check` and the tensors by name, whose floating-point values are finite. It
            may raise Damaged, too.

    Returns:
        The result of `decode`.

    Raises:
        ValueError: if the file is of another format, or is damaged.
        OSError: if the file does not exist or cannot be read.
    """
    path = Path(path)
    _require_file(path, noun)
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form:
                found = shortened(metadata.get("format"))
                raise ValueError(f"{path} is not a {noun}: its format is {found}, not {form!r}")
            with _described_as_damaged(path, noun):
                names = list(file.keys())
                slices = {name: file.get_slice(name) for name in names}
                shapes = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
                checked = check(Header(_scalars(metadata.get("scalars", "")), shapes))
            tensors = {name: file.get_tensor(name) for name in names}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a {noun}: {shortened(str(error), quoted=False)}") from None
    with _described_as_damaged(path, noun):
        _require_finite(tensors)
        return decode(checked, tensors)


@contextmanager
def _described_as_damaged(path: Path, noun: str) -> Iterator[None]:
    """Add the name of the file to errors about its content."""
    try:
        yield
    except Damaged as error:
        raise ValueError(f"{path} is a damaged {noun}: {error}; make it again") from None


def _require_file(path: Path, noun: str) -> None:
    """Raise ValueError if the path is not a file, and OSError if it cannot be opened.

    safetensors reports every file that it cannot open as missing, and would wait for ever for a named pipe.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder, not a {noun}")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file, so it cannot be a {noun}")
    with path.open("rb"):
        pass


def _scalars(text: str) -> dict[str, Any]:
    try:
        scalars = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("its scalars are not valid JSON") from None
    if not isinstance(scalars, dict):
        raise Damaged(f"its scalars are a {type(scalars).__name__}, not an object")
    return scalars


def _require_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise Damaged(f"{name} has values that are nan or infinite")


def pack_triangle(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower triangle of a matrix (d, d), row by row, (d (d + 1) / 2,)."""
    return torch.cat([matrix[row, : row + 1] for row in range(len(matrix))])


def unpack_triangle(packed: torch.Tensor, d: int) -> torch.Tensor:
    """Return the lower triangular matrix (d, d) that `pack_triangle` packed, (d (d + 1) / 2,)."""
    matrix = packed.new_zeros(d, d)
    for row in range(d):
        start = row * (row + 1) // 2
        matrix[row, : row + 1] = packed[start : start + row + 1]
    return matrix

"""Files and folders that appear complete under their final name, or not at all, and are read without trust.

While something is being written, its temporary name ends in `PARTIAL`, which nobody else uses. What a killed
process leaves behind is recognised by that suffix.
"""

import errno
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors

from ziplm.errors import BadRun

PARTIAL = ".ziplm-partial"
T = TypeVar("T")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _partial(path)
    try:
        yield temporary
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; give it the final name if the block succeeds.

    An existing folder is replaced, so check first that it may be. The files get the permissions that the
    umask gives to new files, whatever the libraries that write them prefer. Errors of these libraries about
    failed writes become OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _partial(folder), _partial(folder)
    temporary.mkdir()
    mode = temporary.stat().st_mode & 0o666  # without the bits of the umask
    try:
        with failed_writes_as_os_errors():
            yield temporary
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file():
                path.chmod(mode)
                _sync(path)
            else:
                _sync_folder(path)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
        _sync_folder(folder.parent)
    finally:
        if old.exists() and not folder.exists():  # the second rename failed
            old.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _partial(path: Path) -> Path:
    """Return a temporary name for a file or folder that is being written."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")


def _publish(temporary: Path, path: Path) -> None:
    """Rename a complete file to its final name, so that it survives a power failure."""
    _sync(temporary)
    os.replace(temporary, path)  # noqa: PTH105  # like `_sync_folder`, a call that the tests of faults replace
    _sync_folder(path.parent)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk; Windows does so by itself, and some file systems refuse."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def failed_writes_as_os_errors() -> Iterator[None]:
    """Turn the errors with which safetensors and torch.save report a failed write into OSError."""
    try:
        yield
    except safetensors.SafetensorError as error:
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    except RuntimeError as error:
        # torch.save gives no reason: "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534".
        if "PytorchStreamWriter" not in str(error) and "] . unexpected pos" not in str(error):
            raise
        raise OSError(errno.EIO, "a file could not be written completely") from error


def write_json(path: Path, document: Any) -> None:
    """Write a document of plain values as JSON."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a document written by `write_json`; raise BadRun if the file is damaged."""
    _require_file(path)
    with believed(path):
        return parse_json(path.read_bytes(), strict=True)


def parse_json(data: str | bytes, strict: bool = False) -> Any:
    """Parse JSON from a file that may be damaged.

    Args:
        data: the contents of the file.
        strict: whether to refuse numbers that `write_json` never writes: nan, infinite ones, and whole ones
            of more than 64 bits.

    Raises:
        ValueError: if it is not JSON in UTF-8, is nested too deeply, holds a number of thousands of digits,
            or half of a surrogate pair, which is no text and could not be written again.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    numbers: Any = {"parse_int": _whole, "parse_float": _finite, "parse_constant": _finite}
    try:
        content = json.loads(text, **(numbers if strict else {}))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text.lower():  # only an escape can be half of a pair
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half of a surrogate pair") from None
    return content


def _whole(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError("a number has more than 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def write_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write tensors by name as safetensors."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    folder = _partial(path)  # a folder, because safetensors writes to a temporary name of its own
    folder.mkdir()
    try:
        with failed_writes_as_os_errors():
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / path.name)
        (folder / path.name).chmod(folder.stat().st_mode & 0o666)
        _publish(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_tensors(path: Path) -> dict[str, Any]:
    """Read tensors written by `write_tensors`; raise BadRun if the file is damaged."""
    from safetensors.torch import load_file

    _require_file(path)
    with believed(path):
        return load_file(path)


@contextmanager
def believed(path: Path) -> Iterator[None]:
    """Raise BadRun if the block fails because the contents of a state file are not what was written.

    Errors of the operating system, such as missing permissions, pass through: the file may be whole.
    """
    try:
        yield
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        safetensors.SafetensorError,
    ) as error:
        raise damaged(path) from error


def checked(path: Path, parse: Callable[[Any], T], document: Any) -> T:
    """Return what `parse` makes of a document that was read from `path`; raise BadRun if it cannot."""
    with believed(path):
        return parse(document)


def is_number(value: Any) -> bool:
    """Return whether a value of a document is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_file(path: Path) -> None:
    """Raise BadRun if something other than a file, such as a folder, has the name of a state file."""
    if path.exists() and not path.is_file():
        raise damaged(path)


def damaged(path: Path) -> BadRun:
    """Return the error for a state file that cannot be read."""
    return BadRun(f"{path} is damaged", "delete it and run the command again")

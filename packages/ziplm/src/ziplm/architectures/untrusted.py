"""Reading what others wrote: JSON files, the paths in them, and the exceptions of other libraries."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ziplm.errors import BadCheckpoint, ZipLMError, one_line
from ziplm.files import parse_json

# The file is not there, or something else is: damage, and not a failure of the system.
ABSENT = (None, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)


@contextmanager
def reported(what: str, hint: str, kind: type[ZipLMError] = BadCheckpoint) -> Iterator[None]:
    """Raise the exceptions of another library as an error of ours, with the first line of their message.

    Only calls of that library belong in the block: a mistake of our own must not pass for a damaged file.
    Failures of the system stay what they are, such as a file that may not be read or memory that is used up.

    Args:
        what: what failed, such as "the tokenizer of x cannot be loaded".
        hint: what to do about it.
        kind: class of the error.
    """
    try:
        yield
    except (ZipLMError, MemoryError):
        raise
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        raise kind(f"{what}: {one_line(error)}", hint) from error
    except Exception as error:  # tokenizers, for one, raises this very class
        raise kind(f"{what}: {one_line(error)}", hint) from error


def read_untrusted(file: Path, kind: type[ZipLMError] = BadCheckpoint) -> Any:
    """Read a JSON file; raise an error that names the file if it is damaged.

    Raises:
        ZipLMError: of class `kind`, if the file is not JSON.
        OSError: if it cannot be read.
    """
    try:
        return parse_json(file.read_bytes())
    except ValueError as error:
        raise kind(f"{file} is not JSON: {one_line(error)}", "correct the file") from error


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raise BadCheckpoint if it holds anything else."""
    content = read_untrusted(file)
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{file} holds a {type(content).__name__}, not an object", "correct the file")
    return content


def inside(folder: Path, name: Any, where: str) -> Path:
    """Return the path that a file names, relative to its folder.

    The file at that path may be a link, as all files in the cache of the hub are; its folder may not.

    Args:
        folder: folder of the file that names the path.
        name: the path as the file has it.
        where: where it is named, for the error message.

    Raises:
        BadCheckpoint: if the name is not text, or the path leaves the folder.
    """
    usable = isinstance(name, str) and "\0" not in name and not Path(name).is_absolute()
    if not usable or ".." in Path(name).parts or not _stays(folder, folder / name):
        raise BadCheckpoint(
            f"{where} names the path {name!r}, which is not in {folder}", "name a path within the folder"
        )
    return folder / name


def _stays(folder: Path, path: Path) -> bool:
    """Return whether neither a path nor the folder that it is in is a link to another folder."""
    try:
        start = path if path.is_dir() else path.parent
        return start.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a name that is too long, or a link to itself
        return False

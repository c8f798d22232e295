"""Atomic file writes: a reader finds the old content or the new, also after a crash or a loss of power."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency_profiler._errors import OptionError, OutputFileError, shortened

# Marks what is being written. Nothing else ends in it, so that leftovers of a killed process are recognised.
PARTIAL = ".ziplm-partial"


def check_writable(path: Path) -> None:
    """Raise OptionError if `path` cannot be written; call it before a long measurement."""
    temporary = _partial_name(path)
    try:
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` if the block succeeds.

    Raises:
        OptionError: The folder does not exist or is not writable.
        OutputFileError: Writing fails, for example because the disk is full.
    """
    check_writable(path)
    temporary = _partial_name(path)
    try:
        with _reported(path):
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_files(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder, for writers that choose file names themselves.

    If the block succeeds, all files of that folder are moved beside `path`, and `path` itself comes last.

    Raises:
        OptionError: The folder does not exist or is not writable.
        OutputFileError: Writing fails, for example because the disk is full.
    """
    check_writable(path)
    folder = _partial_name(path)
    try:
        with _reported(path):
            folder.mkdir()
            yield folder / path.name
            for written in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
                _sync(written)
                written.replace(path.parent / written.name)
            _sync(path.parent)
    finally:
        if folder.is_dir():
            for leftover in folder.iterdir():
                leftover.unlink()
            folder.rmdir()


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputFileError(
            f"cannot write {shortened(path)}: {error.strerror or error}",
            "free some space, or choose another folder",
        ) from error


def _refused(path: Path, error: OSError | ValueError) -> OptionError:
    reason = error.strerror if isinstance(error, OSError) else "not a valid path"
    return OptionError(
        f"cannot write {shortened(path)}: {reason}", "choose a folder that exists and is writable"
    )


def _partial_name(path: Path) -> Path:
    # The name is cut: a folder of a file system accepts names of 255 bytes, and `path` may use them all.
    return path.parent / f".{path.name[:50]}.{uuid.uuid4().hex}{PARTIAL}"


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk; folders cannot be synchronised on Windows."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

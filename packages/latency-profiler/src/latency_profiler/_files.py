"""Atomic file writes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency_profiler._errors import OptionError


def check_writable(path: Path) -> None:
    """Raise OptionError if `path` cannot be written; call it before a long measurement."""
    with _temporary_file(path):
        pass


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` if the block succeeds."""
    with _temporary_file(path) as temporary:
        yield temporary
        # Temporary files are private; give this one the permissions of an ordinary new file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Create a file beside `path`, and remove it at the end unless it has been renamed."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise OptionError(
            f"cannot write {path}: {error.strerror}", "choose a folder that exists and is writable"
        ) from error
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)

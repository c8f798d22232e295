"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency_profiler._errors import OptionError


def check_writable(path: Path) -> None:
    """Raise OptionError if `path` cannot be written, before hours are spent on what it is to hold."""
    with _temporary(path):
        pass


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder, which becomes `path` when the block ends without an error."""
    with _temporary(path) as temporary:
        yield temporary
        # Temporary files are private; a table is as readable as any other new file of this user.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A new file beside `path`, removed at the end if it is still there."""
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

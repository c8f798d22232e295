"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latency_profiler._errors import OptionError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder, which becomes `path` when the block ends without an error."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        reason = error.strerror or "no access"
        raise OptionError(
            f"cannot write {path}: {reason}", "choose a folder that exists and is writable"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private; a table is as readable as any other new file of this user.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

"""Recognising a run folder by its marker file, and locking it.

The marker is the only file by which a folder is recognised as a run. Its content says so in words that nobody
else writes. The lock is on the marker's inode and not on a file of its own, because a lock file that is
deleted during a run would let a second process in: without its marker, a folder is no run folder at all.
"""

import json
import os
import sys
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from ziplm.errors import BadRun, UsageError
from ziplm.files import parse_json
from ziplm.options.toml import load_options

NAME = "ziplm-run.json"
MAGIC = "This folder is a run of ziplm. Without this file, the run cannot be resumed."
FORMAT = 2
"""Format number of the run folders that this version writes. Folders of version 0.1 have no marker."""

_LONGEST = 10_000  # bytes of a marker; ours are much shorter


def require_usable(folder: Path) -> None:
    """Raise BadRun unless the folder is missing, empty, or a run that this version resumes; touch nothing."""
    if folder.is_dir():
        if not _is_new(folder):
            _require_own(folder)
    elif folder.is_symlink() or (folder.exists() and not folder.is_dir()):  # another process may just make it
        raise BadRun(f"{folder} is not a folder", "choose another --output")


def claim(folder: Path, held: ExitStack) -> int:
    """Make a new or empty folder a run folder, or recognise one; lock it for as long as the stack is open.

    Returns:
        The descriptor of the marker, for `require_still_own`.

    Raises:
        BadRun: if the folder holds something else, is a run of another format, or is in use. Nothing in it is
            touched then.
    """
    require_usable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / NAME
    descriptor = os.open(marker, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    held.callback(os.close, descriptor)
    if not _lock(descriptor):
        raise BadRun(f"another process works in {folder}", "wait for it, or choose another --output")
    held.callback(_unlock, descriptor)
    require_still_own(descriptor, folder)
    if _is_new(folder):
        _write(descriptor)
    else:
        _require_own(folder)  # another process may have filled it in the meantime
    return descriptor


def _write(descriptor: int) -> None:
    """Write the marker in place, because renaming another file would lose the lock; all of it or nothing."""
    made = {"what": MAGIC, "format": FORMAT, "ziplm": version("ziplm")}
    rest = (json.dumps(made, indent=1) + "\n").encode()
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, 0)
        raise


def require_still_own(descriptor: int, folder: Path) -> None:
    """Raise BadRun if the marker was deleted or replaced since it was locked: the folder may not be ours."""
    try:
        same = os.path.samestat(os.fstat(descriptor), os.stat(folder / NAME))  # noqa: PTH116
    except FileNotFoundError:
        same = False
    if not same:
        raise BadRun(
            f"{NAME} in {folder} was deleted or replaced by another process",
            "choose another --output, and leave the files of a run in place while it is running",
        )


def has_marker(folder: Path) -> bool:
    """Return whether a folder is marked as a run, of any format."""
    return _read(folder / NAME) is not None


def _is_new(folder: Path) -> bool:
    """Return whether a folder is empty; a process killed early leaves an empty marker."""
    names = [path.name for path in folder.iterdir()]
    marker = folder / NAME
    return not names or (
        names == [NAME] and not marker.is_symlink() and marker.is_file() and marker.stat().st_size == 0
    )


def _require_own(folder: Path) -> None:
    """Raise BadRun unless the marker says that the folder is a run of this format."""
    found = _read(folder / NAME)
    if found is None:
        if (folder / NAME).exists() or (folder / NAME).is_symlink():
            raise BadRun(
                f"{folder / NAME} is damaged, or was not written by ziplm",
                "restore it, or choose a new or empty folder for --output",
            )
        if _is_from_0_1(folder):
            raise BadRun(
                f"{folder} was made by ziplm 0.1 and cannot be resumed",
                "choose another --output; `ziplm status` and `ziplm evaluate` still read it",
            )
        raise BadRun(
            f"{folder} holds something else than a run of ziplm", "choose a new or empty folder for --output"
        )
    if found != FORMAT:
        raise BadRun(
            f"{folder} is a run of format {found}, and this version resumes format {FORMAT}",
            "choose another --output, or install the version that made it",
        )


def _is_from_0_1(folder: Path) -> bool:
    """Return whether a folder without a marker looks like a run of version 0.1."""
    if not (folder / "state").is_dir():
        return False
    try:
        load_options(folder / "config.toml")
    except UsageError:
        return False
    return True


def _read(marker: Path) -> object:
    """Return the format number in a marker; None if there is no marker, or a file that we did not write."""
    if marker.is_symlink() or not marker.is_file() or marker.stat().st_size > _LONGEST:
        return None
    try:
        found = parse_json(marker.read_bytes())
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("what") != MAGIC:
        return None
    return found.get("format") or "unknown"


if sys.platform == "win32":
    import msvcrt

    _BEYOND = 2**30  # a byte after the end of the marker, which others may therefore read

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Lock a file if no other process has; the lock does not outlive the process."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        """Unlock a file, also for children that have inherited its descriptor."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

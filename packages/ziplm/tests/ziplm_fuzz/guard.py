"""What a loader must never do: write elsewhere, start a process, connect to a machine, or unpickle."""

import os
import sys
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.utime", "os.chown")
TWO_PATHS = ("os.rename", "os.link", "os.symlink")
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "pickle.find_class")


class Guard:
    """Watches this process through Python's audit events; there is no way to remove it again.

    Attributes:
        allowed: folders that may be written to; None while nothing is watched.
        seen: what was done against the rules.
    """

    def __init__(self) -> None:
        self.allowed: tuple[Path, ...] | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and flags & WRITES:
                self._check(event, path)
        elif event in CHANGES:
            self._check(event, arguments[0], arguments[-1] if event != "os.truncate" else -1)
        elif event in TWO_PATHS:
            self._check(event, arguments[1])
            if event == "os.rename":
                self._check(event, arguments[0])
        elif event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r:.100}")

    def _check(self, event: str, path: Any, folder: int = -1) -> None:
        """Note a change, unless it is allowed; the path may be relative to an open folder."""
        parent = f"/proc/self/fd/{folder}" if folder >= 0 else ""
        place = (
            os.path.realpath(os.path.join(parent, os.fsdecode(path))) if not isinstance(path, int) else ""  # noqa: PTH118
        )
        if (
            place
            and place != os.devnull
            and not any(Path(place).is_relative_to(one) for one in self.allowed or ())
        ):
            self.seen.append(f"{event} {place}")

"""The log of a run: everything that is shown, with times, and which stage runs now."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ziplm.files import write_json
from ziplm.runs.forecast import Position
from ziplm.runs.progress import Advance, FullReporter, Overall, Reporter


class Logged:
    """A reporter that writes a log file, and passes everything on to another reporter.

    Args:
        reporter: the reporter to pass everything on to.
        log_file: the log; lines are appended.
        now_file: JSON file that says which stage runs now, in which process, since when, and how long it and
            everything after it take, if a forecast is shown. It exists only while a stage is running.
    """

    def __init__(self, reporter: Reporter, log_file: Path, now_file: Path) -> None:
        self._reporter, self._log_file, self._now_file = reporter, log_file, now_file

    @property
    def overall(self) -> Overall | None:
        """What describes how far the run is."""
        return self._reporter.overall if isinstance(self._reporter, FullReporter) else None

    @overall.setter
    def overall(self, overall: Overall | None) -> None:
        if isinstance(self._reporter, FullReporter):
            self._reporter.overall = overall

    @property
    def shows_overall(self) -> bool:
        """Whether the other reporter shows how far the run is."""
        return isinstance(self._reporter, FullReporter)

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Log the beginning and the end of a stage, with the time it took."""
        self.log(f"{description} …")
        start = time.perf_counter()
        here = {"stage": description, "pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        position = self.overall.to_dict() if isinstance(self.overall, Position) else {}
        write_json(self._now_file, here | position)
        try:
            with self._reporter.stage(description) as advance:
                yield advance
        except BaseException:
            self.log(f"{description}: stopped after {time.perf_counter() - start:.1f} s")
            raise
        finally:
            self._now_file.unlink(missing_ok=True)
        self.log(f"{description}: {time.perf_counter() - start:.1f} s")

    def note(self, text: str) -> None:
        """Log a line, and show it."""
        self.log(text)
        self._reporter.note(text)

    def detail(self, text: str) -> None:
        """Log a line, and pass it on to a reporter that takes details."""
        self.log(text)
        if isinstance(self._reporter, FullReporter):
            self._reporter.detail(text)

    def log(self, text: str) -> None:
        """Log a line without showing it."""
        with self._log_file.open("a", encoding="utf-8") as file:
            file.write(f"{_now()}  {text}\n")


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")

"""The command line in a process that is interrupted, as by Ctrl-C, at a chosen progress call."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Counting:
    """A reporter that interrupts its process shortly after the n-th call."""

    point = 0
    passed = 0

    @contextmanager
    def stage(self, description: str) -> Iterator[Callable[[float, float], None]]:
        """Count the stage, and all progress in it."""
        self._count()
        yield lambda done, total: self._count()

    def note(self, text: str) -> None:
        """Count the note."""
        self._count()

    def _count(self) -> None:
        Counting.passed += 1
        if Counting.passed == Counting.point:
            signal.setitimer(signal.ITIMER_REAL, 0.001)  # in the middle of whatever comes next


def compress_until(options: dict[str, Any], point: int) -> None:
    """Call `ziplm compress --quiet` and end with its exit code; 0 as the point for no interruption."""
    import ziplm.runs.progress
    from click.testing import CliRunner
    from ziplm.cli import main

    Counting.point = point
    ziplm.runs.progress.Silent = Counting  # type: ignore[assignment,misc]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    line = ["compress", options.pop("model"), "--quiet"]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            line += [f"--{name.replace('_', '-')}", str(each)]
    result = CliRunner().invoke(main, line)
    print(result.output, result.exception)  # shown if the test fails
    sys.exit(result.exit_code)

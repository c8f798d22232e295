"""A process that is interrupted, as by Ctrl-C, at a chosen progress call."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


def interrupt_at(point: int) -> None:
    """Let this process be interrupted at a progress call of a command with `--quiet`; never for 0."""
    import ziplm.runs.progress

    Counting.point = point
    ziplm.runs.progress.Silent = Counting  # type: ignore[assignment,misc]
    signal.signal(signal.SIGALRM, signal.default_int_handler)

"""Progress reports: bars on stderr, or nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[float, float], None]
"""Called with the amount of work done and the total."""


class Reporter(Protocol):
    """Receives the progress of a run."""

    def stage(self, description: str) -> AbstractContextManager[Advance]:
        """Return a context manager for one stage; entering it gives a function to report progress to."""

    def note(self, text: str) -> None:
        """Show one line of text."""


class Silent:
    """A reporter that shows nothing."""

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Ignore the stage."""
        yield lambda done, total: None

    def note(self, text: str) -> None:
        """Ignore the text."""


class Bars:
    """A reporter that draws a bar for each stage and keeps it, with the time it took, when it is done."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Draw a bar that stays when the stage is done."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(description, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
            bar.update(task, total=1, completed=1)

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, soft_wrap=True)

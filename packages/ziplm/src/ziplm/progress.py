"""What a run says while it works: bars on stderr, or nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[float, float], None]
"""Called with what is done and what there is to do."""


class Reporter(Protocol):
    """Told of stages as they run."""

    def stage(self, description: str) -> AbstractContextManager[Advance]:
        """A stage, for the duration of a with statement, which gets a function to call on progress."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Silent:
    """Says nothing."""

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Nothing."""
        yield lambda done, total: None

    def note(self, text: str) -> None:
        """Nothing."""


class Bars:
    """A bar for each stage; when it is done, a line with what it took."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """A bar, kept when the stage is done."""
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
        """A line."""
        self._console.print(text, markup=False, soft_wrap=True)

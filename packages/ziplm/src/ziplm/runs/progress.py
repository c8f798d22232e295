"""Progress reports: bars on stderr, or nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol, runtime_checkable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

Advance = Callable[[float, float], None]
"""Called with the amount of work done and the total."""
Overall = Callable[[float], str]
"""Describes how far the whole run is, given the seconds that the present stage has taken."""


class Reporter(Protocol):
    """Receives the progress of a run."""

    def stage(self, description: str) -> AbstractContextManager[Advance]:
        """Return a context manager for one stage; entering it gives a function to report progress to."""

    def note(self, text: str) -> None:
        """Show one line of text."""


@runtime_checkable
class FullReporter(Reporter, Protocol):
    """A reporter that also shows how far the whole run is, and what each stage did.

    Attributes:
        overall: describes how far the whole run is, while a stage is running; None if that is not known.
    """

    overall: Overall | None

    def detail(self, text: str) -> None:
        """Take one line about what a stage did."""


class Silent:
    """A reporter that shows nothing."""

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Ignore the stage."""
        yield lambda done, total: None

    def note(self, text: str) -> None:
        """Ignore the text."""


class Bars:
    """A reporter that draws a bar for each stage and keeps it, with the time it took, when it is done.

    While a stage is running, a line above its bar says how far the whole run is.

    Args:
        console: where to draw; None for stderr.
        verbose: whether to print what each stage did.
    """

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._verbose = verbose
        self.overall: Overall | None = None

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        """Draw a bar that stays when the stage is done."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            Times(),
        )
        with _BelowOverall(*columns, console=self._console) as bar:
            bar.overall = self.overall
            task = bar.add_task(description, total=None)
            try:
                yield lambda done, total: bar.update(task, completed=done, total=total)
                bar.update(task, total=1, completed=1)
            finally:
                bar.overall = None  # only the stage's own line stays

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Print a line, if the reporter is verbose."""
        if self._verbose:
            self.note(text)


class Times(ProgressColumn):
    """The time that a stage has taken and, while it is running, about how long it still takes."""

    def render(self, task: Task) -> Text:
        """Return ``0:01:10``, or ``0:01:10, 0:00:20 left``."""
        taken = task.finished_time if task.finished else task.elapsed
        times = f"{timedelta(seconds=int(taken or 0))}"
        if not task.finished and task.time_remaining is not None:
            times += f", {timedelta(seconds=int(task.time_remaining))} left"
        return Text(times)


class _BelowOverall(Progress):
    """Bars with a line above them, which is made anew whenever they are drawn."""

    overall: Overall | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the line, if there is one, and the bars."""
        if self.overall is not None and self.tasks:
            yield Text(self.overall(self.tasks[0].elapsed or 0.0))
        yield from super().get_renderables()

"""Tasks. A new one is a file with a `Task`, and a line here."""

from ziplm.tasks.base import Features, Progress, Source, Splits, Task

__all__ = ["Features", "Progress", "Source", "Splits", "Task"]

"""Tasks: what a model is for. A new one is a file with a `Task` class, and a line in `TASKS`."""

import difflib
import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

from ziplm.errors import UsageError
from ziplm.options.source import Source

if TYPE_CHECKING:
    from ziplm.tasks.base import Features, Progress, Splits, Task

__all__ = ["TASKS", "Features", "Progress", "Source", "Splits", "Task", "make_task"]

_GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")

TASKS: Mapping[str, str] = {
    **dict.fromkeys(_GLUE, "glue:GlueTask"),
    "classification": "classification:ClassificationTask",
    "token-classification": "token_classification:TokenTask",
    "squad": "squad:SquadTask",
    "causal-lm": "language:CausalTask",
    "masked-lm": "masked_language:MaskedTask",
    "embedding": "embedding:EmbeddingTask",
}
"""File and class of each task, by the task's name; they are imported when a task is made."""


def __getattr__(name: str) -> Any:
    """Import the types of tasks, and with them torch, when they are first used."""
    if name in ("Features", "Progress", "Splits", "Task"):
        return getattr(import_module(f"{__package__}.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def make_task(name: str, **settings: Any) -> "Task":
    """Make the task of that name.

    Args:
        name: a key of `TASKS`.
        settings: arguments of the task; numbers may be given as text, as on a command line.

    Raises:
        UsageError: if there is no such task, or if a setting is unknown or has the wrong type.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name.lower().replace("-", ""), TASKS, n=3, cutoff=0.5)
        raise UsageError(f"there is no task {name!r}", f"try {', '.join(near or TASKS)}")
    file, _, class_name = TASKS[name].partition(":")
    task = getattr(import_module(f"{__package__}.{file}"), class_name)
    if name in _GLUE:
        task = partial(task, name)
    known = inspect.signature(task).parameters
    for setting in settings:
        if setting not in known:
            raise UsageError(
                f"task {name} has no setting {setting!r}",
                f"it has {', '.join(known)}" if known else "it has none",
            )
    converted = {
        setting: _number(f"setting {setting} of task {name}", value, known[setting].annotation)
        for setting, value in settings.items()
    }
    made: Task = task(**converted)
    return made


def _number(what: str, value: Any, annotation: Any) -> Any:
    """Convert a value to the number that the annotation asks for; return it unchanged if it asks for none."""
    kind = next((kind for kind in (int, float) if kind in (annotation, *get_args(annotation))), None)
    if kind is None or value is None:
        return value
    try:
        number = kind(value)
        if isinstance(value, str) or number == value:
            return number
    except (TypeError, ValueError):
        pass
    raise UsageError(f"the {what} is {value!r}", f"give a {'whole ' if kind is int else ''}number")

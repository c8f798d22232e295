"""Tasks. A new one is a file with a `Task`, and a line here."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from ziplm.errors import UsageError
from ziplm.tasks.base import Features, Progress, Source, Splits, Task
from ziplm.tasks.classification import ClassificationTask
from ziplm.tasks.embedding import EmbeddingTask
from ziplm.tasks.glue import SPECS, GlueTask
from ziplm.tasks.language import CausalTask
from ziplm.tasks.masked_language import MaskedTask
from ziplm.tasks.squad import SquadTask
from ziplm.tasks.token_classification import TokenTask

__all__ = ["TASKS", "Features", "Progress", "Source", "Splits", "Task", "make_task"]

TASKS: Mapping[str, Callable[..., Task]] = {
    **{name: partial(GlueTask, name) for name in SPECS},
    "classification": ClassificationTask,
    "token-classification": TokenTask,
    "squad": SquadTask,
    "causal-lm": CausalTask,
    "masked-lm": MaskedTask,
    "embedding": EmbeddingTask,
}


def make_task(name: str, **settings: Any) -> Task:
    """The task of that name. Settings that are numbers may be given as text, as a command line has them.

    Raises:
        UsageError: if there is no such task, if it has no such setting, or not of that kind.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name.lower().replace("-", ""), TASKS, n=3, cutoff=0.5)
        raise UsageError(f"there is no task {name!r}", f"try {', '.join(near or TASKS)}")
    known = inspect.signature(TASKS[name]).parameters
    for setting in settings:
        if setting not in known:
            raise UsageError(
                f"task {name} has no setting {setting!r}",
                f"it has {', '.join(known)}" if known else "it has none",
            )
    numbers = {
        setting: _number(f"setting {setting} of task {name}", value, known[setting].annotation)
        for setting, value in settings.items()
    }
    return TASKS[name](**numbers)


def _number(what: str, value: Any, annotation: Any) -> Any:
    """The value as the number that is asked for; as it is, if none is."""
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

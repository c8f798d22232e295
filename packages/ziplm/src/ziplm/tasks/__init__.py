"""Tasks. A new one is a file with a `Task`, and a line here."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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
    """The task of that name.

    Raises:
        UsageError: if there is no such task, or if it has no such setting.
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
    return TASKS[name](**settings)

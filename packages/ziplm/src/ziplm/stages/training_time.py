"""A short training of a copy of a model, which tells how many steps a training can have in some minutes."""

import copy
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm.stages.training_folder import wait_for_everyone
from ziplm.tasks.base import Features, Task

FIRST, TIMED = 2, 8  # steps that are not timed: they allocate, and have the longest examples; steps that are


def steps_within(
    seconds: float,
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    *,
    teacher: PreTrainedModel | None = None,
    loss: DistillationLoss | None = None,
    folder: Path,
) -> int:
    """Return how many steps of a training take this time, at least one; a copy of the model is trained.

    With torchrun, all processes make the call together, and the result of the first one counts.

    Args:
        seconds: the time.
        model: the model; it is not changed.
        task: makes the batches.
        features: examples to train on.
        options: hyper-parameters; the number of steps and epochs is ignored.
        teacher: as for `finetune`.
        loss: as for `finetune`.
        folder: folder for the training of the copy; it is deleted, also what a killed call has left in it.
    """
    times: list[float] = []

    def note_time(done: int, total: int) -> None:
        times.append(time.perf_counter())

    _empty(folder)
    finetune(
        copy.deepcopy(model),
        task,
        features,
        replace(options, max_steps=FIRST + TIMED, checkpoints=1, patience=0, report_to=()),
        teacher=teacher,
        loss=loss,
        folder=folder,
        progress=note_time,
    )
    _empty(folder)
    if not times:  # not the first process
        return 1
    each = (times[-1] - times[FIRST - 1]) / TIMED
    return max(1, int(seconds / each))


def _empty(folder: Path) -> None:
    """Delete a folder while no process uses it."""
    wait_for_everyone()
    shutil.rmtree(folder, ignore_errors=True)
    wait_for_everyone()

"""Short trainings of a copy of a model, which decide how many steps a training has and how fast it learns."""

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.options.training import TrainingOptions, TrainingSummary
from ziplm.stages.finetune import finetune
from ziplm.stages.training_folder import wait_for_everyone
from ziplm.tasks.base import Features, Progress, Task

FIRST, TIMED = 2, 8  # steps that are not timed: they allocate, and have the longest examples; steps that are
RATES = (1.0, 1 / 4, 1 / 16)  # learning rates that are tried, relative to the highest
ENOUGH = 1 / 2  # of the best gain, so that high rates are preferred: trials are much shorter than trainings


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

    short = replace(options, max_steps=FIRST + TIMED)
    _trial(model, task, features, short, teacher, loss, folder, note_time)
    if not times:  # not the first process
        return 1
    each = (times[-1] - times[FIRST - 1]) / TIMED
    return max(1, int(seconds / each))


def suitable_rate(
    steps: int,
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    *,
    teacher: PreTrainedModel | None = None,
    loss: DistillationLoss | None = None,
    folder: Path,
    apart: Sequence[Features],
) -> float:
    """Return the highest learning rate at which short trainings gain enough on samples kept apart.

    The rate of `options`, a quarter and a sixteenth of it are tried. Enough is half of what the best of them
    gains; if no rate lowers the loss, the lowest is returned. How high a rate may be depends on the task, and
    on how close to its teacher a model is already: a rate that suits a model with a lot to learn harms one
    that is almost as good as its teacher. With torchrun, all processes make the call together and get the
    same result.

    Args:
        steps: optimizer steps of each trial.
        model: the model; copies of it are trained.
        task: makes the batches.
        features: examples to train on.
        options: hyper-parameters; the number of steps and epochs is ignored.
        teacher: as for `finetune`.
        loss: as for `finetune`.
        folder: folder for the trials; it is deleted, also what a killed call has left in it.
        apart: examples to compute the loss on, as for `finetune`.
    """
    gains = {}
    for rate in (options.learning_rate * factor for factor in RATES):
        short = replace(options, learning_rate=rate, max_steps=steps)
        checks = _trial(model, task, features, short, teacher, loss, folder, apart=apart).checks
        gains[rate] = checks[0].loss - checks[-1].loss
    return chosen_rate(gains)


def chosen_rate(gains: Mapping[float, float]) -> float:
    """Return the highest learning rate that gains enough, or the lowest if none gains anything."""
    best = max(gains.values())
    return max(rate for rate, gain in gains.items() if gain >= ENOUGH * best) if best > 0 else min(gains)


def _trial(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    options: TrainingOptions,
    teacher: PreTrainedModel | None,
    loss: DistillationLoss | None,
    folder: Path,
    progress: Progress | None = None,
    apart: Sequence[Features] = (),
) -> TrainingSummary:
    """Train a copy of the model in a folder that is empty before, and gone afterwards."""
    _empty(folder)
    summary = finetune(
        copy.deepcopy(model),
        task,
        features,
        replace(options, checkpoints=1, patience=0, report_to=()),
        teacher=teacher,
        loss=loss,
        folder=folder,
        progress=progress,
        apart=apart,
    )
    _empty(folder)
    return summary


def _empty(folder: Path) -> None:
    """Delete a folder while no process uses it."""
    wait_for_everyone()
    shutil.rmtree(folder, ignore_errors=True)
    wait_for_everyone()

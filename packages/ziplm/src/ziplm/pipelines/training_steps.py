"""Steps that fine-tune: the dense model before pruning, and each member after it."""

import copy
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import save
from ziplm.files import is_number, write_json
from ziplm.options.toml import load_options
from ziplm.options.training import CHECKED_SHARE, Check
from ziplm.pipelines.loading import load_member
from ziplm.pipelines.recipe import Recipe, learning_rate_for, with_checks
from ziplm.pipelines.values import Start
from ziplm.results.family import DENSE_TRAINING, family_report
from ziplm.runs.folder import Run
from ziplm.stages.evaluate import divergences
from ziplm.stages.finetune import finetune, needs_teacher
from ziplm.stages.training_time import steps_within
from ziplm.tasks.heads import mean_divergence

DENSE_RATE = 8e-5  # learning rate of the dense model, whose head may be new: the paper's for BERT-base


def finetune_member(
    start: Start, recipe: Recipe, small: PreTrainedModel, state: Path, run: Run
) -> dict[str, Any]:
    """Fine-tune a shrunk model in place, with the dense model as teacher; all processes train.

    Args:
        start: what the run starts from.
        recipe: how to fine-tune.
        small: the shrunk model. It stays as it is if the training clearly raises the loss on the samples
            kept apart.
        state: folder for intermediate results.
        run: the run.

    Returns:
        The summary of the training, as JSON values.
    """
    teacher = start.dense if needs_teacher(recipe.loss) else None
    recipe = _with_learning_rate(start, recipe, small, state, run)
    recipe = _within_minutes(start, recipe, small, teacher, state, run)
    recipe = with_checks(recipe, run.workers.world)
    metric = start.task.metric

    def note(check: Check) -> None:
        judged = "" if check.metric is None else f", {metric} {check.metric:.4g}"
        run.reporter.note(
            f"fine-tune: step {check.step}, loss {check.loss:.4g}{judged} on samples kept apart"
        )

    with run.stage("finetune", "fine-tune") as advance:
        summary = finetune(
            small,
            start.task,
            recipe.examples,
            recipe.training,
            teacher=teacher,
            loss=recipe.loss,
            folder=state / "training",
            progress=advance,
            apart=recipe.apart,
            checked=note,
        )
    if recipe.apart:
        run.detail(f"fine-tune: the weights of step {summary.best_step} of {summary.steps} are kept")
    weights = {name: getattr(recipe.loss, name) for name in ("task", "logit", "token", "cosine")}
    return {
        **asdict(summary),
        "learning_rate": recipe.training.learning_rate,
        "loss_weights": {name: weight for name, weight in weights.items() if weight},
    }


def _with_learning_rate(
    start: Start, recipe: Recipe, small: PreTrainedModel, state: Path, run: Run
) -> Recipe:
    """Choose the learning rate by the member's divergence from the dense model, unless the user gave one.

    It is stored: a resumed training has the same.
    """
    if start.options.learning_rate is not None:
        return recipe

    def make() -> float:
        with run.timed("finetune"):
            parts = divergences(small, start.dense_outputs, start.task, start.samples.judging, run.workers)
        return learning_rate_for(mean_divergence(parts), start.dense.config.hidden_size)

    rate = run.stored(state / "learning_rate.json", make, parse=_as_rate)
    run.detail(f"fine-tune: learning rate {rate:.2g}")
    return replace(recipe, training=replace(recipe.training, learning_rate=rate))


def _as_rate(document: Any) -> float:
    if not is_number(document) or document <= 0:
        raise ValueError("not a learning rate")
    return float(document)


def _within_minutes(
    start: Start,
    recipe: Recipe,
    small: PreTrainedModel,
    teacher: PreTrainedModel | None,
    state: Path,
    run: Run,
) -> Recipe:
    """Turn minutes into a number of steps, which is stored: a resumed training has the same schedule."""
    minutes = start.options.train_minutes
    if minutes is None:
        return recipe

    def make() -> int:
        seconds = 60 * minutes / (1 + (CHECKED_SHARE / 2 if recipe.apart else 0))
        with run.stage("finetune", "fine-tune: timing some steps"):
            return steps_within(
                seconds,
                small,
                start.task,
                recipe.examples,
                recipe.training,
                teacher=teacher,
                loss=recipe.loss,
                folder=state / "timing",
            )

    steps = run.stored(state / "steps.json", make, parse=_as_steps)
    run.reporter.note(f"fine-tune: {minutes:g} minutes allow about {steps:,} steps")
    return replace(recipe, training=replace(recipe.training, max_steps=steps))


def _as_steps(document: Any) -> int:
    if type(document) is not int or document < 1:
        raise ValueError("not a number of steps")
    return document


def train_dense(start: Start, recipe: Recipe, run: Run) -> Start:
    """Return `start` with the dense model fine-tuned, or unchanged if not asked for. All processes train."""
    options = start.options
    if not options.trains_dense:
        return start
    state = run.state / "dense-training"
    if run.workers.missing(run.dense_folder / "config.json"):
        model = copy.deepcopy(start.dense)
        training = replace(
            recipe.training,
            learning_rate=options.learning_rate or DENSE_RATE,
            epochs=options.dense_epochs or 1.0,
            max_steps=options.dense_steps,
            dropout=options.dropout is not False,
        )
        with run.stage("finetune", "fine-tune the dense model") as advance:
            summary = finetune(model, start.task, recipe.examples, training, folder=state, progress=advance)

        def add_summary(made: Path) -> None:
            write_json(made / DENSE_TRAINING, asdict(summary))

        run.workers.first(lambda: save(model, run.dense_folder, start.tokenizer, also=add_summary))
    run.workers.first(partial(_drop_checkpoints, state))
    return replace(start, dense=load_member(start, run.dense_folder))


def write_family_report(run: Run) -> None:
    """Write what the trainings and stages of all targets took, including targets of earlier commands."""
    targets = load_options(run.options_file).targets()
    run.workers.first(lambda: write_json(run.family_file, family_report(run, targets)))


def _drop_checkpoints(training: Path) -> None:
    """Delete the checkpoints of a training, which take several times a model's size."""
    for checkpoint in training.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)

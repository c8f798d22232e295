"""Gradual compression: prune to a target, fine-tune with the dense model as teacher, and continue from there.

Each target starts from the finished member of the target before. Speedups and the latency table refer to the
dense model throughout.
"""

import copy
import math
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from latency_profiler import LatencyTable
from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import save
from ziplm.errors import UsageError, one_line
from ziplm.files import write_json
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.options.training import TrainingOptions
from ziplm.pipelines import common_steps as common
from ziplm.pipelines import target_steps as each
from ziplm.pipelines.loading import draw_samples, load_member, load_start
from ziplm.pipelines.oneshot import build_candidate, prune_model
from ziplm.pipelines.values import Start
from ziplm.results.family import DENSE_TRAINING, family_report
from ziplm.runs.folder import Run
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.choices import SECONDS, Choices
from ziplm.stages.finetune import check_training, finetune


def compress_gradually(options: Options, targets: Sequence[Target], run: Run) -> None:
    """Make all targets that are not finished yet, each from the one before, and report on the whole family.

    The traces of a step and the checkpoints of its training take several times a model's size. They are
    deleted when the step's member is finished.
    """
    if any(target.kind == "recover" for target in targets):
        raise UsageError("gradual compression cannot aim at a share of the metric", "give --speedup")
    training = training_options(options, run.workers)
    start = load_start(options, run)
    table = common.profile(start, run)
    reach = common.make_choices(start, start.dense, table)
    common.require_reachable(reach, targets)
    check_training(start.dense, start.task, start.splits.train, training, distillation(start))
    targets = sorted(targets, key=lambda target: -reach.budgets(target).get(SECONDS, math.inf))
    start = train_dense(start, training, run)
    current, previous = start.dense, "dense"
    for target in targets:
        step = run.step(f"{target.name}-from-{previous}")
        folder = run.member_folder(target.name)
        if run.workers.missing(folder / "metrics.json"):
            run.reporter.note(f"target {target.name}, from {previous}")
            make_step(start, reach, table, current, previous, target, step)
        run.workers.first(partial(_drop_intermediate_results, step, target.name))
        current, previous = load_member(start, folder), target.name
    report = family_report(run, targets)
    run.workers.first(lambda: write_json(run.family_file, report))


def make_step(
    start: Start,
    reach: Choices,
    table: LatencyTable,
    current: PreTrainedModel,
    previous: str,
    target: Target,
    run: Run,
) -> None:
    """Prune the current model to a target, fine-tune it, and save the member."""
    # The seed depends on both ends of the step, so that each step draws other samples than the one before.
    place = zlib.crc32(f"{previous} {target.name}".encode()) % 2**16
    seed = (start.options.seed + place) % 2**30
    samples = draw_samples(start.splits.train, start.options, start.task, seed)
    pruned = prune_model(start, current, table, samples, seed, run)
    train = partial(
        distill, start, replace(training_options(start.options, run.workers), seed=seed), target, run
    )
    state = run.target_state(target.name)
    candidate = build_candidate(start, reach, pruned, target, target, state, run, finetune=train)
    each.save_member(start, candidate.model, candidate.report, run.member_folder(target.name), run)


def distill(
    start: Start, training: TrainingOptions, target: Target, run: Run, small: PreTrainedModel
) -> dict[str, Any]:
    """Fine-tune a shrunk model with the dense model as teacher; all processes train."""
    loss = distillation(start)
    with run.stage("finetune", "fine-tune") as advance:
        summary = finetune(
            small,
            start.task,
            start.splits.train,
            training,
            teacher=start.dense if loss.logit or loss.token else None,
            loss=loss,
            folder=run.training_folder(target.name),
            progress=advance,
        )
    return asdict(summary)


def distillation(start: Start) -> DistillationLoss:
    """Return the loss of fine-tuning; models without logits learn from the teacher's hidden states alone."""
    options = start.options
    try:
        return DistillationLoss(
            task=options.task_weight,
            logit=options.logit_weight if start.task.head.has_loss else 0.0,
            token=options.token_weight,
            temperature=options.temperature,
        )
    except ValueError as error:
        raise UsageError(
            f"the loss cannot be made: {one_line(error)}", "check its weights and the temperature"
        ) from error


def training_options(options: Options, workers: Workers = ALONE) -> TrainingOptions:
    """Return the hyper-parameters of fine-tuning after each target; processes share each batch."""
    if options.train_batch_size % workers.world:
        raise UsageError(
            f"train_batch_size is {options.train_batch_size} with {workers.world} processes",
            "give a multiple of their number: they share each batch",
        )
    return TrainingOptions(
        learning_rate=options.learning_rate,
        epochs=options.epochs_per_step,
        max_steps=options.steps_per_target,
        batch_size=options.train_batch_size // workers.world,
        gradient_accumulation=options.gradient_accumulation,
        weight_decay=options.weight_decay,
        seed=options.seed,
        dropout=options.dropout,
        precision=options.precision,
        report_to=options.report_to,
    )


def train_dense(start: Start, training: TrainingOptions, run: Run) -> Start:
    """Fine-tune the dense model first, if asked to; it becomes the teacher. All processes train."""
    options = start.options
    if not options.trains_dense:
        return start
    state = run.state / "dense-training"
    if run.workers.missing(run.dense_folder / "config.json"):
        model = copy.deepcopy(start.dense)
        training = replace(training, epochs=options.dense_epochs or 1.0, max_steps=options.dense_steps)
        with run.stage("finetune", "fine-tune the dense model") as advance:
            summary = finetune(
                model, start.task, start.splits.train, training, folder=state, progress=advance
            )

        def add_summary(made: Path) -> None:
            write_json(made / DENSE_TRAINING, asdict(summary))

        run.workers.first(lambda: save(model, run.dense_folder, start.tokenizer, also=add_summary))
    run.workers.first(partial(_drop_checkpoints, state))
    return replace(start, dense=load_member(start, run.dense_folder))


def _drop_intermediate_results(step: Run, target: str) -> None:
    shutil.rmtree(step.state / "traces", ignore_errors=True)
    _drop_checkpoints(step.training_folder(target))


def _drop_checkpoints(training: Path) -> None:
    for checkpoint in training.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)

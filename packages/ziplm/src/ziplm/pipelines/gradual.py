"""Gradual compression: prune to a target, fine-tune with the dense model as teacher, and continue from there.

Each target starts from the finished member of the target before. Speedups and the latency table refer to the
dense model throughout.
"""

import copy
import math
import shutil
import zlib
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import save
from ziplm.errors import UsageError, one_line
from ziplm.files import write_json
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.options.toml import load_options
from ziplm.options.training import TrainingOptions
from ziplm.pipelines import common_steps, target_steps
from ziplm.pipelines.alternatives import measure_alternatives
from ziplm.pipelines.estimates import forecast
from ziplm.pipelines.loading import draw_samples, load_member, load_start
from ziplm.pipelines.oneshot import build_shrunk, finish, prune_model
from ziplm.pipelines.values import Start
from ziplm.results.family import DENSE_TRAINING, family_report
from ziplm.runs.folder import Run
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.choices import SECONDS, Choices
from ziplm.stages.finetune import check_training, distillation_loss, finetune, needs_teacher


def compress_gradually(options: Options, run: Run) -> None:
    """Make all targets that are not finished yet, each from the one before, and report on the whole family.

    Finished targets of earlier commands in the run folder are starting points as well. The traces of a
    target and the checkpoints of its training take several times a model's size. They are deleted when its
    member is finished.
    """
    targets = load_options(run.options_file).targets()
    if any(target.kind == "recover" for target in targets):
        raise UsageError("gradual compression cannot aim at a share of the metric", "give --speedup")
    training = training_options(options, run.workers)
    start = load_start(options, run)
    table = common_steps.profile(start, run)
    dense_choices = common_steps.make_choices(start, start.dense, table)
    common_steps.require_reachable(dense_choices, targets)
    check_training(start.dense, start.task, start.splits.train, training, distillation(start))
    # The slowest first; targets with limits alone come before all others.
    targets.sort(key=lambda target: -dense_choices.budgets(target).get(SECONDS, math.inf))
    forecast(start, dense_choices, targets, run)
    start = train_dense(start, training, run)
    current, previous = start.dense, "dense"
    for target in targets:
        target_run = run.for_target(f"{target.name}-from-{previous}")
        folder = run.member_folder(target.name)
        if run.workers.missing(folder / "metrics.json"):
            run.begin_target(target.name, f"target {target.name}, from {previous}")
            seeded = replace(training, seed=_seed_of(options.seed, previous, target))
            make_member(start, dense_choices, current, target, seeded, target_run)
        run.workers.first(partial(_drop_intermediate_results, target_run, target.name))
        current, previous = load_member(start, folder), target.name
    if options.alternatives:
        measure_alternatives(start, dense_choices, targets, run)
    report = family_report(run, targets)
    run.workers.first(lambda: write_json(run.family_file, report))


def _seed_of(seed: int, previous: str, target: Target) -> int:
    """Return a seed that depends on the target and its starting point, so that samples differ."""
    offset = zlib.crc32(f"{previous} {target.name}".encode()) % 2**16
    return (seed + offset) % 2**30


def make_member(
    start: Start,
    dense_choices: Choices,
    current: PreTrainedModel,
    target: Target,
    training: TrainingOptions,
    run: Run,
) -> None:
    """Prune the current model to a target, fine-tune it, and save the member.

    The seed of the training is also that of the samples, the fisher and the search.
    """
    samples = draw_samples(start.splits.train, start.options, start.task, training.seed)
    pruned = prune_model(start, current, dense_choices, samples, training.seed, run)
    state = run.target_state(target.name)
    shrunk = build_shrunk(start, pruned, target, state, run)
    # A target that quantisation alone meets is the dense model, which has nothing to learn from itself.
    trains = any(shrunk.fitted.levels) or current is not start.dense
    summary = distill(start, shrunk.model, target, training, run) if trains else None
    candidate = finish(start, pruned, target, shrunk, state, run, summary)
    target_steps.save_member(start, candidate, run.member_folder(target.name), run)


def distill(
    start: Start, small: PreTrainedModel, target: Target, training: TrainingOptions, run: Run
) -> dict[str, Any]:
    """Fine-tune a shrunk model in place, with the dense model as teacher; all processes train."""
    loss = distillation(start)
    with run.stage("finetune", "fine-tune") as advance:
        summary = finetune(
            small,
            start.task,
            start.splits.train,
            training,
            teacher=start.dense if needs_teacher(loss) else None,
            loss=loss,
            folder=run.training_folder(target.name),
            progress=advance,
        )
    return asdict(summary)


def distillation(start: Start) -> DistillationLoss:
    """Return the loss of fine-tuning; embedders learn from the cosine between the embeddings."""
    options = start.options
    try:
        return distillation_loss(
            start.task.head,
            task=options.task_weight,
            outputs=options.logit_weight,
            token=options.token_weight,
            temperature=options.temperature,
        )
    except ValueError as error:
        raise UsageError(
            f"the loss cannot be made: {one_line(error)}", "check its weights and the temperature"
        ) from error


def training_options(options: Options, workers: Workers = ALONE) -> TrainingOptions:
    """Return the hyper-parameters of fine-tuning after a target, with the batch size of one process.

    Raises:
        UsageError: if the batch size is not a multiple of the number of processes.
    """
    if options.train_batch_size % workers.world:
        raise UsageError(
            f"train_batch_size {options.train_batch_size} cannot be shared by {workers.world} processes",
            "give a multiple of their number",
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
    """Return `start` with the dense model fine-tuned, or unchanged if not asked for. All processes train."""
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


def _drop_intermediate_results(target_run: Run, target: str) -> None:
    shutil.rmtree(target_run.state / "traces", ignore_errors=True)
    _drop_checkpoints(target_run.training_folder(target))


def _drop_checkpoints(training: Path) -> None:
    for checkpoint in training.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)

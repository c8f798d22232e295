"""`--mode gradual`: prune to a target, fine-tune with the dense model as teacher, and go on from there.

Each target starts from the finished model of the one before. Speedups and the latency table refer to the
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

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.checkpoint import save
from ziplm.config import Config
from ziplm.errors import UsageError, one_line
from ziplm.family import DENSE_TRAINING, FAMILY_FILE, family_report
from ziplm.files import write_json
from ziplm.finetune import check_training, finetune
from ziplm.member import Member, check_reachable
from ziplm.pipeline import Pipeline
from ziplm.run import Run
from ziplm.search import SECONDS
from ziplm.targets import Target
from ziplm.training import TrainingOptions
from ziplm.workers import ALONE, Workers


def compress_gradually(pipeline: Pipeline, targets: Sequence[Target]) -> None:
    """Make all targets that are not there yet, one out of the other, and write what the family took.

    The traces of a step and the checkpoints of its training, several times a model's size, are deleted when
    its model is there.
    """
    if any(target.kind == "recover" for target in targets):
        raise UsageError("gradual compression cannot aim at a share of the metric", "give --speedup")
    workers = pipeline.workers
    options, loss = training_options(pipeline.config, workers), distillation(pipeline)
    check_reachable(pipeline, targets)
    check_training(pipeline.model, pipeline.task, pipeline.splits.train, options, loss)
    targets = sorted(targets, key=lambda t: -t.budgets(pipeline.reachable).get(SECONDS, math.inf))
    _train_dense(pipeline)
    current = pipeline.model
    for number, target in enumerate(targets):
        folder, previous = pipeline.run.result_folder(target.name), _previous(targets, number)
        state = _StepRun(pipeline.run, target.name, previous)
        if workers.missing(folder / "metrics.json"):
            pipeline.reporter.note(f"target {target.name}, from {previous}")
            # A step's own, wherever it comes in the run: other samples than the step before had.
            place = zlib.crc32(f"{previous} {target.name}".encode()) % 2**16
            config = replace(pipeline.config, seed=(pipeline.config.seed + place) % 2**30)
            step = Pipeline(config, state, pipeline.reporter, before=pipeline, model=current)
            GradualMember(step, target).make()
        workers.first(partial(_forget, state, target.name))
        current = _loaded(pipeline, folder)
    report = family_report(pipeline.run, targets)
    workers.first(lambda: write_json(pipeline.run.folder / FAMILY_FILE, report))


class _StepRun(Run):
    """The state of one step within a run: its own calibration, the run's results.

    It is named by both ends of the step: with a target more in between, it would be another one.
    """

    def __init__(self, run: Run, target: str, previous: str) -> None:
        super().__init__(run.folder, run.workers)
        self.state = run.state / "steps" / f"{target}-from-{previous}"
        self.metric_file = self.state / "metric.safetensors"

    def training(self, target: str) -> Path:
        """Where the checkpoints of the training are."""
        return self.target_state(target) / "training"


class GradualMember(Member):
    """A target whose model is fine-tuned before it is evaluated."""

    def finetune(self, small: PreTrainedModel) -> dict[str, Any]:
        """Train with the dense model as teacher."""
        pipeline = self.pipeline
        loss, options = distillation(pipeline), training_options(self.config, pipeline.workers)
        teacher = pipeline.dense if loss.logit or loss.token else None
        with self.run.timed("finetune"), self.reporter.stage("fine-tune") as advance:
            summary = finetune(
                small,
                pipeline.task,
                pipeline.splits.train,
                options,
                teacher=teacher,
                loss=loss,
                folder=self.state / "training",
                progress=advance,
            )
        return asdict(summary)


def distillation(pipeline: Pipeline) -> DistillationLoss:
    """The loss of fine-tuning; models that make no logits are taught by their hidden states alone."""
    config, logits = pipeline.config, pipeline.task.head.has_loss
    try:
        return DistillationLoss(
            task=config.task_weight,
            logit=config.logit_weight if logits else 0.0,
            token=config.token_weight,
            temperature=config.temperature,
        )
    except ValueError as error:
        raise UsageError(
            f"the loss cannot be made: {one_line(error)}", "check its weights and the temperature"
        ) from error


def training_options(config: Config, workers: Workers = ALONE) -> TrainingOptions:
    """How to fine-tune after each target. All processes together make one batch, however many there are."""
    if config.train_batch_size % workers.world:
        raise UsageError(
            f"train_batch_size is {config.train_batch_size} with {workers.world} processes",
            "give a multiple of their number: they share each batch",
        )
    return TrainingOptions(
        learning_rate=config.learning_rate,
        epochs=config.epochs_per_step,
        max_steps=config.steps_per_target,
        batch_size=config.train_batch_size // workers.world,
        gradient_accumulation=config.gradient_accumulation,
        weight_decay=config.weight_decay,
        seed=config.seed,
        dropout=config.dropout,
        precision=config.precision,
        report_to=config.report_to,
    )


def _train_dense(pipeline: Pipeline) -> None:
    """Fine-tune the dense model first, if asked to; it becomes the teacher."""
    config, workers = pipeline.config, pipeline.workers
    if not config.trains_dense:
        return
    folder, state = pipeline.run.folder / "dense", pipeline.run.state / "dense-training"
    if workers.missing(folder / "config.json"):
        model = copy.deepcopy(pipeline.model)
        options = replace(
            training_options(config, workers), epochs=config.dense_epochs or 1.0, max_steps=config.dense_steps
        )
        with pipeline.run.timed("finetune"), pipeline.reporter.stage("fine-tune the dense model") as advance:
            train = pipeline.splits.train
            summary = finetune(model, pipeline.task, train, options, folder=state, progress=advance)

        def add_summary(made: Path) -> None:
            write_json(made / DENSE_TRAINING, asdict(summary))

        workers.first(lambda: save(model, folder, pipeline.tokenizer, also=add_summary))
    workers.first(partial(_forget_checkpoints, state))
    pipeline.model = _loaded(pipeline, folder)


def _loaded(pipeline: Pipeline, folder: Path) -> PreTrainedModel:
    """A model from its file, so that a resumed run starts from the same bits."""
    attention = pipeline.config.attention
    options = {"attn_implementation": attention} if attention else {}
    model = pipeline.task.load_model(str(folder), dtype=pipeline.model.dtype, **options)
    model.to(pipeline.model.device)  # type: ignore[arg-type]  # a decorator hides self
    return model


def _forget(state: "_StepRun", target: str) -> None:
    shutil.rmtree(state.state / "traces", ignore_errors=True)
    _forget_checkpoints(state.training(target))


def _forget_checkpoints(training: Path) -> None:
    for checkpoint in training.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def _previous(targets: Sequence[Target], number: int) -> str:
    return "dense" if number == 0 else targets[number - 1].name

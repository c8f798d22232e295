"""`--mode gradual`: prune to a target, fine-tune with the dense model as teacher, and go on from there.

Each target starts from the finished model of the one before. Speedups and the latency table refer to the
dense model throughout.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.checkpoint import save
from ziplm.config import Config
from ziplm.errors import UsageError
from ziplm.files import write_json
from ziplm.finetune import TrainingOptions, finetune
from ziplm.member import Member, check_reachable
from ziplm.pipeline import Pipeline
from ziplm.run import Run
from ziplm.targets import Target


def compress_gradually(pipeline: Pipeline, targets: Sequence[Target]) -> None:
    """Make all targets that are not there yet, one out of the other, and write what the family took."""
    if any(target.kind == "recover" for target in targets):
        raise UsageError("gradual compression cannot aim at a share of the metric", "give --speedup")
    check_reachable(pipeline, targets)
    _train_dense(pipeline)
    current = pipeline.model
    for number, target in enumerate(targets):
        folder = pipeline.run.result_folder(target.name)
        if not pipeline.run.is_done(target.name):
            pipeline.reporter.note(f"target {target.name}, from {_previous(targets, number)}")
            config = replace(pipeline.config, seed=pipeline.config.seed + number)
            state = _StepRun(pipeline.run, target.name)
            step = Pipeline(config, state, pipeline.reporter, before=pipeline, model=current)
            GradualMember(step, target).make()
        # From its file, so that a resumed run starts from the same bits.
        current = pipeline.task.load_model(str(folder), dtype=pipeline.dense.dtype)
        current.to(pipeline.dense.device)  # type: ignore[arg-type]  # a decorator hides self
    write_json(pipeline.run.folder / "family.json", family_report(pipeline.run, targets))


def family_report(run: Run, targets: Sequence[Target]) -> dict[str, Any]:
    """Epochs, examples and hours of a whole family."""
    trainings = [run.metrics(target.name).get("training") or {} for target in targets]
    return {
        "targets": [target.name for target in targets],
        "epochs": math.fsum(training.get("epochs", 0.0) for training in trainings),
        "steps": sum(training.get("steps", 0) for training in trainings),
        "examples": sum(training.get("examples", 0) for training in trainings),
        "hours": sum(run.metrics(targets[-1].name)["seconds"].values()) / 3600,
    }


class _StepRun(Run):
    """The state of one step within a run: its own calibration, the run's results."""

    def __init__(self, run: Run, target: str) -> None:
        super().__init__(run.folder)
        self.state = run.state / "steps" / target
        self.metric_file = self.state / "metric.safetensors"


class GradualMember(Member):
    """A target whose model is fine-tuned before it is evaluated."""

    def finetune(self, small: PreTrainedModel) -> dict[str, Any]:
        """Train with the dense model as teacher."""
        pipeline = self.pipeline
        loss, options = distillation(self.config), training_options(self.config)
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


def distillation(config: Config) -> DistillationLoss:
    """The loss of fine-tuning."""
    return DistillationLoss(
        task=config.task_weight,
        logit=config.logit_weight,
        token=config.token_weight,
        temperature=config.temperature,
    )


def training_options(config: Config) -> TrainingOptions:
    """How to fine-tune after each target."""
    return TrainingOptions(
        learning_rate=config.learning_rate,
        epochs=config.epochs_per_step,
        max_steps=config.steps_per_target,
        batch_size=config.train_batch_size,
        gradient_accumulation=config.gradient_accumulation,
        weight_decay=config.weight_decay,
        seed=config.seed,
        dropout=config.dropout,
        precision=config.precision,
        report_to=config.report_to,
    )


def _train_dense(pipeline: Pipeline) -> None:
    """Fine-tune the dense model first, if asked to; it becomes the teacher."""
    config = pipeline.config
    if not config.dense_epochs and config.dense_steps < 1:
        return
    folder: Path = pipeline.run.folder / "dense"
    if not (folder / "config.json").is_file():
        model = copy.deepcopy(pipeline.model)
        options = replace(
            training_options(config), epochs=config.dense_epochs or 1.0, max_steps=config.dense_steps
        )
        with pipeline.run.timed("finetune"), pipeline.reporter.stage("fine-tune the dense model") as advance:
            state = pipeline.run.state / "dense-training"
            finetune(model, pipeline.task, pipeline.splits.train, options, folder=state, progress=advance)
        save(model, folder, pipeline.tokenizer)
    pipeline.model = pipeline.task.load_model(str(folder), dtype=pipeline.model.dtype)
    pipeline.model.to(config.device)  # type: ignore[arg-type]  # a decorator hides self


def _previous(targets: Sequence[Target], number: int) -> str:
    return "the dense model" if number == 0 else targets[number - 1].name

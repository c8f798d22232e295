"""Fine-tuning of a single checkpoint, with or without a teacher."""

from pathlib import Path
from typing import Any

import torch
from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import load_with_new_head, save
from ziplm.architectures.registry import positions_of
from ziplm.errors import BadRun, UsageError
from ziplm.options.source import Source
from ziplm.options.training import TrainingOptions, TrainingSummary
from ziplm.runs.progress import Reporter
from ziplm.stages.finetune import distillation_loss, finetune
from ziplm.tasks import Task, make_task
from ziplm.tasks.columns import UnknownLabel

NEW_HEAD = "give --new-head (in Python: new_head=True) for a new head with the labels of the data"


def finetune_checkpoint(
    checkpoint: str,
    task: str,
    source: Source,
    output: Path,
    training: TrainingOptions,
    *,
    teacher: str | None = None,
    loss: DistillationLoss | None = None,
    task_settings: dict[str, Any] | None = None,
    new_head: bool = False,
    max_length: int = 128,
    device: str = "cpu",
    reporter: Reporter,
) -> TrainingSummary:
    """Fine-tune a checkpoint and save the result in `output`; see `ziplm.finetune`."""
    if (output / "config.json").exists():
        raise BadRun(f"{output} already holds a model", "choose another output")
    if output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir()))):
        raise BadRun(f"{output} exists already", "choose a new or empty folder")
    made = make_task(task, **(task_settings or {}))
    model = _load(made, checkpoint, training.seed, source if new_head else None)
    model.to(device)  # type: ignore[arg-type]  # a decorator hides self
    tokenizer = made.load_tokenizer(checkpoint)
    length = min(max_length, positions_of(model.config))
    try:
        splits = made.load_splits(model, tokenizer, source, length)
    except UnknownLabel as error:
        raise UsageError(error.message, f"correct the label, or {NEW_HEAD}") from error
    taught_by = None if teacher is None else made.load_model(teacher)
    if taught_by is not None and loss is None:
        loss = distillation_loss(made.head, task=0.0, outputs=1.0, token=0.5)
    state = output.with_name(f"{output.name}-training")
    with reporter.stage("fine-tune") as advance:
        summary = finetune(
            model,
            made,
            splits.train,
            training,
            teacher=taught_by,
            loss=loss,
            folder=state,
            progress=advance,
        )
    # Not the tokenizer that read the data: it remembers to truncate to the maximum length.
    save(model, output, made.load_tokenizer(checkpoint))
    return summary


def _load(task: Task, checkpoint: str, seed: int, labelled: Source | None) -> PreTrainedModel:
    """Load the model to fine-tune, with a new head for the labels of `labelled` if that is given.

    If the model has no head for the task, and the task makes none without labels, say how to get one.
    """
    if labelled is not None:
        found = task.new_head_for(labelled)
        if found is None:
            raise UsageError(f"task {task.name} cannot make a new head", "give a model that has its head")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return load_with_new_head(checkpoint, *found)
    try:
        return task.load_pretrained(checkpoint, seed)
    except UsageError as error:
        if task.new_head() is not None:
            raise
        makes_one = type(task).new_head_for is not Task.new_head_for
        ending = task.class_endings[0]
        by_hand = f"make one with AutoModel{ending}.from_pretrained(…), and save model and tokenizer"
        raise UsageError(error.message, NEW_HEAD if makes_one else by_hand) from error

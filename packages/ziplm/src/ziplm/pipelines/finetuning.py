"""Fine-tuning of a single checkpoint, with or without a teacher."""

from pathlib import Path
from typing import Any

from token_distill import DistillationLoss
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import save
from ziplm.architectures.registry import positions_of
from ziplm.errors import BadRun, UsageError
from ziplm.options.source import Source
from ziplm.options.training import TrainingOptions, TrainingSummary
from ziplm.runs.progress import Reporter
from ziplm.stages.finetune import COSINE, distillation_loss, finetune
from ziplm.tasks import Task, make_task


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
    model = _load(made, checkpoint, training.seed)
    model.to(device)  # type: ignore[arg-type]  # a decorator hides self
    tokenizer = made.load_tokenizer(checkpoint)
    length = min(max_length, positions_of(model.config))
    splits = made.load_splits(model, tokenizer, source, length)
    taught_by = None if teacher is None else made.load_model(teacher)
    if taught_by is not None and loss is None:
        outputs = 1.0 if made.head.pooling is None else COSINE
        loss = distillation_loss(made.head, task=0.0, outputs=outputs, token=0.5)
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


def _load(task: Task, checkpoint: str, seed: int) -> PreTrainedModel:
    """Load the model to fine-tune; say how to give it a head if it has none and the task makes none."""
    try:
        return task.load_pretrained(checkpoint, seed)
    except UsageError as error:
        if task.new_head() is not None:
            raise
        raise UsageError(
            error.message,
            f"give it a new head first: AutoModel{task.class_endings[0]}.from_pretrained(…), with num_labels "
            "for classes, then save_pretrained of model and tokenizer",
        ) from error

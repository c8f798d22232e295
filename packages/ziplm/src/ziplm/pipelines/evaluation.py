"""Evaluation of a single checkpoint or exported file on a task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.exported import ExportedModel
from ziplm.architectures.registry import positions_of
from ziplm.errors import UsageError
from ziplm.options.setting import Setting
from ziplm.options.source import Source
from ziplm.runs.progress import Reporter, Silent
from ziplm.stages.evaluate import Evaluation, predict_split
from ziplm.stages.workload import require_device
from ziplm.tasks import Task, make_task


@dataclass(frozen=True)
class _Loaded:
    task: Task
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def evaluate_checkpoint(
    checkpoint: str,
    task: str,
    source: Source,
    *,
    task_settings: dict[str, Any] | None = None,
    dense: str | None = None,
    max_length: int = 128,
    batch_size: int = 32,
    device: str = "cpu",
    reporter: Reporter | None = None,
) -> Evaluation:
    """Return the metrics of a checkpoint, with intervals, on each evaluation split; see `ziplm.evaluate`."""
    reporter = reporter or Silent()
    loaded = _load(checkpoint, task, task_settings or {}, device)
    if isinstance(loaded.model, ExportedModel):
        threads = loaded.model.threads
        reporter.note(f"running in {loaded.model.engine} on {threads} thread{'s' if threads > 1 else ''}")
    length = min(max_length, positions_of(loaded.model.config))
    splits = loaded.task.load_splits(loaded.model, loaded.tokenizer, source, length)
    if not splits.evaluation:
        raise UsageError("there is nothing to evaluate on", "give --validation-file")
    reference = None if dense is None else loaded.task.load_model(dense)
    predictions = {}
    for name, features in splits.evaluation.items():
        with reporter.stage(f"evaluate: {name}") as advance:
            predictions[name] = predict_split(
                loaded.model,
                loaded.task,
                features,
                reference=reference,
                batch_size=batch_size,
                progress=advance,
            )
    return Evaluation.of(loaded.task, predictions)


def write_predictions(
    checkpoint: str,
    task: str,
    source: Source,
    folder: Path,
    *,
    task_settings: dict[str, Any] | None = None,
    max_length: int = 128,
    device: str = "cpu",
) -> None:
    """Write the predictions of a checkpoint in the format of the GLUE server.

    Raises:
        UsageError: if the task is not one of GLUE's.
    """
    loaded = _load(checkpoint, task, task_settings or {}, device)
    if not hasattr(loaded.task, "write_predictions"):
        raise UsageError(f"there are no prediction files for {task}", "they are for GLUE's tasks only")
    length = min(max_length, positions_of(loaded.model.config))
    tests = loaded.task.load_test(loaded.model, loaded.tokenizer, source, length)  # type: ignore[attr-defined]
    for name, features in tests.items():
        loaded.task.write_predictions(loaded.model, features, folder / name)


def _load(checkpoint: str, task: str, task_settings: dict[str, Any], device: str) -> _Loaded:
    made = make_task(task, **task_settings)
    require_device(Setting(device=device))
    model = made.load_model(checkpoint)
    if isinstance(model, ExportedModel) and torch.device(device).type != "cpu":
        raise UsageError(f"{checkpoint} is an exported file, which runs on the CPU", "use --device cpu")
    model.to(device)  # type: ignore[arg-type]  # a decorator hides self
    return _Loaded(made, model, made.load_tokenizer(checkpoint))

"""The functions that people import: `compress`, `evaluate`, `export` and `finetune`."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from ziplm.errors import UsageError
from ziplm.options.options import Options
from ziplm.options.source import Source
from ziplm.options.training import TrainingOptions, TrainingSummary
from ziplm.options.typed import CompressOptions
from ziplm.options.values import parsed_settings
from ziplm.pipelines.evaluation import evaluate_checkpoint
from ziplm.pipelines.exporting import Exported, export_checkpoints
from ziplm.pipelines.finetuning import finetune_checkpoint
from ziplm.pipelines.gradual import compress_gradually
from ziplm.pipelines.inputs import Inputs, inputs_in_memory, keep_inputs
from ziplm.pipelines.oneshot import compress_oneshot
from ziplm.results.family import Family, read_family
from ziplm.runs.opening import open_run
from ziplm.runs.progress import Bars, Reporter, Silent
from ziplm.runs.workers import join
from ziplm.stages.export_files import Format

if TYPE_CHECKING:
    from datasets import Dataset
    from token_distill import DistillationLoss
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Data: TypeAlias = str | Path | Dataset | Sequence[Mapping[str, Any]]


def compress(
    model: "str | Path | PreTrainedModel | None" = None,
    task: str | None = None,
    *,
    output: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    train_file: "Data | None" = None,
    validation_file: "Data | None" = None,
    eval_file: "Data | None" = None,
    options: Options | None = None,
    progress: bool | Reporter = False,
    **values: Unpack[CompressOptions],
) -> Family:
    """Make a family of smaller models, one for each target, and measure each of them.

    An interrupted call resumes when it is repeated. With a latency table from elsewhere, nothing is measured.
    With torchrun, all processes make the call together: they share the work, and each returns the same
    family.

    Args:
        model: folder of a checkpoint, name of a model on the hub, or a loaded model, which is not changed.
        task: name of a task, one of `ziplm.tasks.TASKS`.
        output: run folder.
        tokenizer: tokenizer of a loaded model.
        train_file: examples to calibrate and fine-tune on: a file, a `datasets.Dataset`, or a list of
            dictionaries. If no data is given, the task loads its own dataset.
        validation_file: examples to evaluate on, likewise.
        eval_file: examples to evaluate on instead of those of validation_file, likewise.
        options: all options at once, instead of the other arguments.
        progress: whether to show progress bars on stderr (in the first process only), or a reporter.
        values: the other options, such as ``speedup=[2, 4]``; `ziplm.options.sections` describes them.

    Returns:
        The members for the targets of this call: first speedups, then latencies, then recover targets; the
        slowest of each kind comes first.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    said: dict[str, Any] = {"model": model, "task": task, "output": str(output or ""), **values}
    if "config" in said:
        warnings.warn(
            "compress(config=…) is deprecated; use compress(options=…)", DeprecationWarning, stacklevel=2
        )
        options = said.pop("config")
    files = {"train_file": train_file, "validation_file": validation_file, "eval_file": eval_file}
    said |= {name: file for name, file in files.items() if file is not None}
    if options is not None:
        if others := [name for name, value in said.items() if value not in (None, "")]:
            raise UsageError(
                f"{others[0]} is given beside options", "put it into options, or give no options"
            )
        return run_compress(options, _reporter(progress), command=f"ziplm.compress(options={options!r})")
    inputs = inputs_in_memory(said, tokenizer)
    named = said if tokenizer is None else {**said, "tokenizer": tokenizer}
    shown = ", ".join(f"{name}={_short(value)}" for name, value in named.items())
    asked = Options.of({**said, **inputs.paths(Path(said["output"]))})
    return run_compress(asked, _reporter(progress), f"ziplm.compress({shown})", inputs)


def run_compress(options: Options, reporter: Reporter, command: str, inputs: Inputs | None = None) -> Family:
    """Carry out `compress` with complete options.

    Args:
        options: the options.
        reporter: receives progress; silent in all processes but the first.
        command: what the user typed, for the reports.
        inputs: a model and data given in memory, which `options` refers to by their paths in the run folder.
    """
    targets = options.targets()
    workers = join(options.device)
    with open_run(options, workers, Silent() if workers.rank > 0 else reporter, command) as run:
        workers.first(partial(keep_inputs, run, options, inputs or Inputs()))
        if options.mode == "gradual":
            compress_gradually(options, run)
        else:
            compress_oneshot(options, run)  # also with fine-tuning
        return read_family(run, targets)


def _short(value: Any) -> str:
    """Return the repr of a value, or its type if it would be long or take several lines."""
    text = repr(str(value)) if isinstance(value, Path) else repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"<{type(value).__name__}>"


def evaluate(
    checkpoint: str | Path,
    task: str,
    *,
    validation_file: str | Path | None = None,
    eval_file: str | Path | None = None,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    task_option: str | Sequence[str] = (),
    dense: str | Path | None = None,
    max_length: int = 128,
    batch_size: int = 32,
    device: str = "cpu",
    progress: bool | Reporter = False,
) -> dict[str, dict[str, float]]:
    """Return the metrics of a checkpoint, dense or shrunk, or of an exported file, on its task.

    Args:
        checkpoint: folder of a checkpoint, name of a model on the hub, or an exported file (.onnx or .xml).
        task: name of a task, one of `ziplm.tasks.TASKS`.
        validation_file: examples to evaluate on; without a file, the task's own dataset.
        eval_file: examples to evaluate on instead of those of validation_file.
        text_column: name of the text column, or of two for pairs.
        label_column: name of the column with labels.
        task_option: settings of the task, such as "stride=64".
        dense: the dense model to compare with, which only embeddings without scores need.
        max_length: maximum length of an example in tokens.
        batch_size: examples per batch.
        device: device such as "cpu" or "cuda:0".
        progress: whether to show progress bars on stderr, or a reporter.

    Returns:
        The metrics by name, for each evaluation split.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    source = Source(
        validation_file=None if validation_file is None else str(validation_file),
        eval_file=None if eval_file is None else str(eval_file),
        text_columns=_texts(text_column),
        label_column=label_column,
        train=False,
    )
    found = evaluate_checkpoint(
        str(checkpoint),
        task,
        source,
        task_settings=parsed_settings(_texts(task_option)),
        dense=None if dense is None else str(dense),
        max_length=max_length,
        batch_size=batch_size,
        device=device,
        reporter=_reporter(progress),
    )
    return found.metrics


def export(
    checkpoint: str | Path,
    format: Format = "onnx",  # noqa: A002
    *,
    quantize: Literal["int8"] | None = None,
    output: str | Path | None = None,
    calibration_file: str | Path | None = None,
    text_column: str | Sequence[str] = (),
    overwrite: bool = False,
    progress: bool | Reporter = False,
) -> list[Exported]:
    """Export a checkpoint, or every member of a run, as a file that engines run without ziplm.

    A file takes batches of any size and length. It is kept only if its outputs agree with the checkpoint's.

    Args:
        checkpoint: folder of a checkpoint, dense or shrunk, name of a model on the hub, or a run folder.
        format: "onnx", "openvino" or "torch-export".
        quantize: "int8" to quantise weights, per channel, and activations.
        output: folder for file, config and tokenizer, or for those of all members; None for the checkpoint's.
        calibration_file: texts to calibrate int8 with, which OpenVINO needs.
        text_column: name of the column with these texts.
        overwrite: whether to replace files that exist and are different.
        progress: whether to show progress bars on stderr, or a reporter.

    Returns:
        The exported files, each with its path, its size, and its difference from the checkpoint.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    texts = None if calibration_file is None else str(calibration_file)
    return export_checkpoints(
        str(checkpoint),
        format,
        quantize=quantize,
        output=None if output is None else Path(output),
        calibration=Source(validation_file=texts, text_columns=_texts(text_column)),
        overwrite=overwrite,
        reporter=_reporter(progress),
    )


def finetune(
    checkpoint: str | Path,
    task: str,
    *,
    output: str | Path,
    train_file: str | Path | None = None,
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    task_option: str | Sequence[str] = (),
    teacher: str | Path | None = None,
    loss: "DistillationLoss | None" = None,
    new_head: bool = False,
    training: TrainingOptions | None = None,
    max_length: int = 128,
    device: str = "cpu",
    progress: bool | Reporter = False,
) -> TrainingSummary:
    """Fine-tune a checkpoint, dense or shrunk, and save the result.

    A killed call resumes when it is repeated, from checkpoints in the folder ``<output>-training``, which may
    be deleted afterwards.

    Args:
        checkpoint: folder of a checkpoint, or name of a model on the hub. For a task of GLUE, it gets a new
            head if it has none.
        task: name of a task, one of `ziplm.tasks.TASKS`.
        output: folder for the fine-tuned model; it must not hold a model yet.
        train_file: examples to train on; without it, the task's own dataset.
        text_column: name of the text column, or of two for pairs.
        label_column: name of the column with labels.
        task_option: settings of the task, such as "stride=64".
        teacher: a checkpoint to distill from, with the same number of layers.
        loss: weights of its parts. None: without a teacher, the task loss alone; with a
            teacher, weight 1 for logits (for embeddings: the cosine distance), 0.5 for hidden states, and 0
            for labels.
        new_head: whether the model gets a new head, with the labels of the training data, whatever head it
            has.
        training: hyper-parameters; None for the defaults of `TrainingOptions`.
        max_length: maximum length of an example in tokens.
        device: device such as "cpu" or "cuda:0".
        progress: whether to show progress bars on stderr, or a reporter.

    Returns:
        A summary of the training.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    source = Source(
        train_file=None if train_file is None else str(train_file),
        text_columns=_texts(text_column),
        label_column=label_column,
    )
    return finetune_checkpoint(
        str(checkpoint),
        task,
        source,
        Path(output),
        training or TrainingOptions(),
        teacher=None if teacher is None else str(teacher),
        loss=loss,
        new_head=new_head,
        task_settings=parsed_settings(_texts(task_option)),
        max_length=max_length,
        device=device,
        reporter=_reporter(progress),
    )


def _reporter(progress: bool | Reporter) -> Reporter:
    if isinstance(progress, bool):
        return Bars() if progress else Silent()
    return progress


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)

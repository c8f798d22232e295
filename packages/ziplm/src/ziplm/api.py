"""The functions that people import: `compress` and `evaluate`."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ziplm.options.options import Options
from ziplm.options.source import Source
from ziplm.options.values import parsed_settings
from ziplm.pipelines.evaluation import evaluate_checkpoint
from ziplm.pipelines.gradual import compress_gradually
from ziplm.pipelines.oneshot import compress_oneshot
from ziplm.results.family import Family, read_family
from ziplm.runs.opening import open_run
from ziplm.runs.progress import Bars, Reporter, Silent
from ziplm.runs.workers import join


def compress(
    model: str | None = None,
    task: str | None = None,
    *,
    output: str | Path | None = None,
    options: Options | None = None,
    progress: bool | Reporter = False,
    **values: Any,
) -> Family:
    """Make a family of smaller models, one for each target, and measure each of them.

    An interrupted call resumes when it is repeated. With a latency table from elsewhere, nothing is measured.
    With torchrun, all processes make the call together: they share the work, and each returns the same
    family.

    Args:
        model: folder of a checkpoint, or name of a model on the hub.
        task: name of a task, one of `ziplm.tasks.TASKS`.
        output: run folder.
        options: all options at once, instead of the other arguments.
        progress: whether to show progress bars on stderr (in the first process only), or a reporter.
        values: other fields of `Options`, such as ``speedup=[2, 4]``.

    Returns:
        The members for the targets of this call: by speedup, latency, then recover; each the slowest first.

    Raises:
        ZipLMError: with what is wrong and what to do.
    """
    if "config" in values:
        warnings.warn(
            "compress(config=…) is deprecated; use compress(options=…)", DeprecationWarning, stacklevel=2
        )
        options = values.pop("config")
    if options is None:
        options = Options.of({"model": model, "task": task, "output": str(output or ""), **values})
    targets = options.targets()
    workers = join(options.device)
    reporter = Silent() if workers.rank > 0 else _reporter(progress)
    with open_run(options, workers, reporter) as run:
        if options.mode == "gradual":
            compress_gradually(options, run)
        elif todo := workers.first(lambda: [target for target in targets if not run.is_done(target.name)]):
            compress_oneshot(options, todo, run)
        return read_family(run, targets)


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
    """Return the metrics of a checkpoint, dense or shrunk, on its task.

    Args:
        checkpoint: folder of a checkpoint, or name of a model on the hub.
        task: name of a task, one of `ziplm.tasks.TASKS`.
        validation_file: examples to evaluate on; without a file, the task's own dataset.
        eval_file: examples to evaluate on instead of those of validation_file.
        text_column: name of the text column, or of two for pairs.
        label_column: name of the column with labels.
        task_option: settings of the task, such as "stride=64".
        dense: the dense model, for metrics of embeddings that compare with it.
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


def _reporter(progress: bool | Reporter) -> Reporter:
    if isinstance(progress, bool):
        return Bars() if progress else Silent()
    return progress


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)

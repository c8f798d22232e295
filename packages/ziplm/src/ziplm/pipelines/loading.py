"""Loading what a run starts from: the dense model, its task, and its data."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ziplm.architectures.registry import architecture_of, positions_of
from ziplm.errors import UsageError
from ziplm.options.options import Options
from ziplm.options.setting import Setting
from ziplm.pipelines.inputs import keep_loaded
from ziplm.pipelines.samples import draw_samples, usual_lengths
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.runs.table import read_run_table
from ziplm.stages.clock import choose_clock, probe_machine
from ziplm.stages.workload import require_device, with_default_lengths
from ziplm.tasks import Splits, Task, make_task
from ziplm.tasks.classification import SequenceTask

PERCENTILES = (10, 50, 90)  # of the lengths of the data, at which latency is measured


def load_start(options: Options, run: Run) -> Start:
    """Load the dense model, its task and data; raise ZipLMError before any long work if they do not match."""
    task = make_task(options.task, **options.task_settings)
    dense = _load_dense(options, task)
    tokenizer = task.load_tokenizer(options.model)
    length = min(options.data_length, positions_of(dense.config))
    with run.reporter.stage("reading data"):
        splits = task.load_splits(dense, tokenizer, options.source, length)
    _check(options, task, splits)
    samples = draw_samples(splits.train, options, task, dense, options.seed)
    keep_loaded(run, options, dense, samples)
    run.detail(
        f"samples: {len(samples.calibration)} to calibrate, {len(samples.search)} to search, "
        f"{len(samples.judging)} to judge; "
        + ", ".join(f"{len(rows)} to evaluate ({name})" for name, rows in splits.evaluation.items())
    )
    lengths = usual_lengths(splits.train, len(samples.calibration), options.seed)
    _note_cut_examples(options, task, lengths, length, run)
    setting = with_default_lengths(_with_lengths_of_data(options, lengths, run), [dense])
    setting = _with_clock(setting, options, run)
    return Start(options, task, dense, tokenizer, splits, samples, setting)


def _note_cut_examples(options: Options, task: Task, lengths: Sequence[int], longest: int, run: Run) -> None:
    """Say so if examples are as long as the length to which they are cut, which nobody has asked for."""
    if options.max_length or not isinstance(task, SequenceTask):
        return
    if full := sum(length >= longest for length in lengths):
        run.reporter.note(
            f"examples are cut to {longest} tokens, which {full} of {len(lengths)} training examples reach; "
            "--max-length sets another length"
        )


def _with_lengths_of_data(options: Options, lengths: Sequence[int], run: Run) -> Setting:
    """Measure latency at the lengths of the data, unless lengths are given."""
    setting = options.setting
    if setting.regime != "latency" or setting.lengths:
        return setting
    chosen = tuple(max(1, round(float(length))) for length in np.percentile(lengths, PERCENTILES))
    if options.latency_table is None:
        run.reporter.note(
            f"measuring inputs of {', '.join(map(str, chosen))} tokens: 10th, 50th and 90th percentile of "
            "the training data"
        )
    return replace(setting, lengths=chosen)


def _with_clock(setting: Setting, options: Options, run: Run) -> Setting:
    """Choose the clock; a run with a latency table keeps the table's, so that all times are comparable."""
    if setting.clock != "auto" or options.latency_table is not None:
        return setting
    if not run.workers.missing(run.latency_file):
        return replace(setting, clock=read_run_table(run.latency_file).environment.clock)  # type: ignore[arg-type]
    setting, reason = run.workers.first(lambda: choose_clock(setting, probe_machine()))
    run.reporter.note(reason)
    return setting


def _load_dense(options: Options, task: Task) -> PreTrainedModel:
    loading: dict[str, Any] = {"dtype": torch.float32}
    if options.attention:
        loading["attn_implementation"] = options.attention
    require_device(options.setting)  # before anything is loaded
    if options.trains_dense:
        model = task.load_pretrained(options.model, options.seed, **loading)
    else:
        model = task.load_model(options.model, **loading)
    architecture_of(model)  # raises UnsupportedModel
    model.to(options.device)  # type: ignore[arg-type]  # a decorator hides self
    return model.eval()


def load_member(start: Start, folder: Path) -> PreTrainedModel:
    """Load a model of this run from its checkpoint, so that a resumed run starts from the same bits."""
    attention = start.options.attention
    loading = {"attn_implementation": attention} if attention else {}
    model = start.task.load_model(str(folder), dtype=start.dense.dtype, **loading)
    model.to(start.dense.device)  # type: ignore[arg-type]  # a decorator hides self
    return model


def _check(options: Options, task: Task, splits: Splits) -> None:
    """Raise UsageError if data, options and task do not fit each other."""
    if not splits.evaluation:
        raise UsageError("there is nothing to evaluate on", "give --validation-file")
    if options.prior == "exact" and not task.head.pooled:
        raise UsageError(
            f"prior exact cannot be used for task {options.task}", "it is for mean embeddings: use auto"
        )
    if options.loss == "task" and not task.head.has_loss:
        raise UsageError(f"task {options.task} has no loss of its own", "use --loss kl")

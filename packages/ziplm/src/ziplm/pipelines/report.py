"""The report of a member: the contents of its metrics.json."""

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from ziplm.options.targets import Target
from ziplm.pipelines.values import Pruned, Refitted, Start
from ziplm.runs.folder import Run
from ziplm.stages.choices import ReportedSize
from ziplm.stages.evaluate import Evaluation, divergences
from ziplm.stages.fit import Fitted
from ziplm.stages.measure import Measured
from ziplm.stages.search import Found
from ziplm.tasks.heads import mean_divergence


class Shrunk(NamedTuple):
    """A shrunk model before its evaluation, and how it was made.

    Attributes:
        model: the model, which gradual runs train in place.
        found: the result of the search.
        fitted: the result of the fit.
        refitted: the result of the refit; None without one.
    """

    model: PreTrainedModel
    found: Found
    fitted: Fitted
    refitted: Refitted | None


def report_of(
    start: Start,
    pruned: Pruned,
    target: Target,
    shrunk: Shrunk,
    measured: Measured | None,
    compressed: Evaluation,
    dense: Evaluation,
    run: Run,
) -> dict[str, Any]:
    """Return the report of a member. All processes compute its divergence from the dense model."""
    choices = pruned.choices
    fitted = shrunk.fitted
    sizes = choices.sizes(fitted.levels)
    predicted = choices.seconds(fitted.levels)
    differences = run.workers.first(lambda: compressed.differences(start.task, dense))
    from_dense = divergences(
        shrunk.model, start.dense_outputs, start.task, start.samples.judging, run.workers
    )
    return {
        "target": {"name": target.name, "kind": target.kind, "value": target.value},
        "dataset": dataset_report(start, run),
        "measured": None if measured is None else asdict(measured),
        "predicted": {"seconds": predicted, "speedup": choices.dense_seconds / predicted},
        "metric": {
            "name": start.task.metric,
            "dense": start.main_metric(dense.metrics),
            "compressed": start.main_metric(compressed.metrics),
            "greater_is_better": start.task.greater_is_better,
            "dense_interval": start.main_interval(dense.intervals),
            "interval": start.main_interval(compressed.intervals),
            "difference_interval": start.main_interval(differences),
        },
        "metrics": {"dense": dense.metrics, "compressed": compressed.metrics},
        "intervals": {
            "dense": dense.intervals,
            "compressed": compressed.intervals,
            "difference": differences,
        },
        "divergence": mean_divergence(from_dense),
        "sizes": sizes,
        "dense_sizes": {part: _dense_size(start, part, part in choices.narrowed_parts) for part in sizes},
        "parameters": _parameters(start, shrunk.model),
        "dense_parameters": _parameters(start, start.dense),
        "search": shrunk.found.to_dict(),
        "fit": fitted.rounds,
        "refit": None if shrunk.refitted is None else shrunk.refitted._asdict(),
        "environment": choices.table.environment.to_dict(),
        "versions": {
            "ziplm": version("ziplm"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "mode": start.options.mode,
        "seed": start.options.seed,
        "command": run.command,
        "seconds": run.seconds,
        "cpu_seconds": run.cpu_seconds,
    }


def dataset_report(start: Start, run: Run) -> dict[str, str | None] | None:
    """Return the name of what was evaluated on: a dataset on the hub with its configuration, or a file.

    Data from memory has no name: the result is None.
    """
    files = start.options.source.evaluation_files
    if files:
        path = Path(next(iter(files.values())))
        return None if path.parent == run.inputs_folder else {"name": path.name, "config": None}
    if start.task.dataset is None:
        return None
    name, _, config = start.task.dataset.partition(":")
    return {"name": name, "config": config or None}


def _dense_size(start: Start, part: str, paired: bool) -> ReportedSize:
    """Return the size of a part in the dense model, as `Choices.sizes` gives sizes."""
    size = start.architecture.dense_size(start.dense, part)
    return list(size) if paired else size.groups


def quantization_report(start: Start, pruned: Pruned, before: Evaluation) -> dict[str, Any]:
    """Return what quantisation contributes: the metric before it, and the speedup that it brings alone."""
    return {
        "quantize": start.setting.quantize,
        "metric_before": start.main_metric(before.metrics),
        "interval_before": start.main_interval(before.intervals),
        "dense_speedup": pruned.choices.quantized_speedup,
    }


def exported_report(folder: Path) -> dict[str, Any]:
    """Return the paths of exported files within a member's folder, and their size in bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "files": [str(path.relative_to(folder)) for path in files],
        "bytes": sum(path.stat().st_size for path in files),
    }


def _parameters(start: Start, model: PreTrainedModel) -> dict[str, int]:
    """Count the parameters of a model, and those of its layers."""
    layers = sum(p.numel() for layer in start.architecture.layers(model) for p in layer.parameters())
    return {"all": sum(p.numel() for p in model.parameters()), "layers": layers}

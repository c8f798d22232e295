"""The report of a member: the contents of its metrics.json."""

import platform
import shlex
import sys
from importlib.metadata import version
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ziplm.options.targets import Target
from ziplm.pipelines.values import Pruned, Start
from ziplm.runs.folder import Run
from ziplm.stages.evaluate import divergences
from ziplm.stages.search import Found
from ziplm.tasks.heads import mean_divergence

Metrics = dict[str, dict[str, float]]
"""Metrics by name, for each evaluation split."""


def report_of(
    start: Start,
    pruned: Pruned,
    target: Target,
    small: PreTrainedModel,
    found: Found,
    fitted: dict[str, Any],
    refitted: dict[str, Any] | None,
    metrics: Metrics,
    dense_metrics: Metrics,
    run: Run,
) -> dict[str, Any]:
    """Collect everything worth knowing about a member; processes share the batches of the divergence."""
    choices = pruned.choices
    sizes = choices.sizes(fitted["levels"])
    predicted = choices.table.predict(sizes)
    from_dense = divergences(small, start.dense, start.task, start.samples.judging, run.workers)
    return {
        "target": {"name": target.name, "kind": target.kind, "value": target.value},
        "measured": fitted["measured"],
        "predicted": {"seconds": predicted, "speedup": choices.dense_seconds / predicted},
        "metric": {
            "name": start.task.metric,
            "dense": start.main_metric(dense_metrics),
            "compressed": start.main_metric(metrics),
            "greater_is_better": start.task.greater_is_better,
        },
        "metrics": {"dense": dense_metrics, "compressed": metrics},
        "divergence": mean_divergence(from_dense),
        "sizes": sizes,
        "dense_sizes": {kind: start.architecture.dense_groups(start.dense, kind) for kind in sizes},  # type: ignore[arg-type]
        "parameters": _parameters(start, small),
        "dense_parameters": _parameters(start, start.dense),
        "search": found.to_dict(),
        "fit": fitted["rounds"],
        "refit": refitted,
        "environment": choices.table.environment.to_dict(),
        "versions": {
            "ziplm": version("ziplm"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "seed": start.options.seed,
        "command": shlex.join(["ziplm", *sys.argv[1:]]),
        "seconds": run.seconds,
    }


def _parameters(start: Start, model: PreTrainedModel) -> dict[str, int]:
    """Count the parameters of a model, and those of its layers."""
    layers = sum(p.numel() for layer in start.architecture.layers(model) for p in layer.parameters())
    return {"all": sum(p.numel() for p in model.parameters()), "layers": layers}

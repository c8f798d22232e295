"""`--alternatives`: what people do instead of pruning, measured and evaluated in the same run.

The alternatives are the dense model in int8, where the engine runs it, and the dense model with whole layers
dropped as it is: every second one, and for each speedup as many as that takes, either the last ones or evenly
spread ones. In a quantised run they are quantised as well, and the members are also shown without int8.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ziplm.architectures.exported import ExportedModel, files_of
from ziplm.architectures.layer_dropping import evenly_spaced, keep_layers
from ziplm.options.targets import Target
from ziplm.pipelines.engine_steps import calibration_inputs, dense_in_engine
from ziplm.pipelines.evaluation_steps import evaluate, evaluate_dense
from ziplm.pipelines.loading import load_member
from ziplm.pipelines.values import Start
from ziplm.results.reports import ALTERNATIVES, read_alternatives
from ziplm.runs.folder import Run
from ziplm.runs.progress import Advance
from ziplm.stages.choices import Choices
from ziplm.stages.engine import run_in_engine
from ziplm.stages.measure import compare_models, for_measuring

INT8_ALONE = "dense + int8"


def lacks_alternatives(run: Run, targets: Sequence[Target]) -> bool:
    """Return whether a run has no alternatives, or those for other targets.

    A list that names no targets was not made by a run. It stays as it is.
    """
    path, names = run.folder / ALTERNATIVES, _names(targets)
    return not path.exists() or any(row.get("targets", names) != names for row in read_alternatives(path))


def measure_alternatives(start: Start, dense_choices: Choices, targets: Sequence[Target], run: Run) -> None:
    """Measure and evaluate the alternatives of a run, and store them; only the first process runs them.

    Args:
        start: what the run starts from.
        dense_choices: choices of the dense model.
        targets: all targets of the run; alternatives for others are replaced.
        run: the run.
    """
    path = run.folder / ALTERNATIVES

    def drop_others() -> None:
        if lacks_alternatives(run, targets):
            path.unlink(missing_ok=True)

    def make() -> list[dict[str, Any]]:
        quantized = start.setting.quantize is not None
        variants = {
            f"{name}{' + int8' if quantized else ''}": (keep_layers(start.dense, kept), quantized)
            for name, kept in dropped_layers(dense_choices, targets).items()
        }
        if quantized:
            variants |= {INT8_ALONE: (start.dense, True)}
            variants |= {
                f"{target.name} without int8": (load_member(start, run.member_folder(target.name)), False)
                for target in targets
                if run.is_done(target.name)
            }
        return _measured_rows(start, variants, targets, run)

    run.workers.first(drop_others)
    run.stored(path, make)


def dropped_layers(choices: Choices, targets: Sequence[Target]) -> dict[str, list[int]]:
    """Return the layers that are kept, by a name that says so: every second one, and as targets require."""
    layers = 1 + max(levels.branch.layer for levels in choices.levels)
    kept = {"every 2nd layer": list(range(0, layers, 2))}
    per_layer = (choices.unpruned_seconds - choices.table.fixed) / layers
    for target in targets:
        if target.kind != "speedup":
            continue
        allowed = choices.dense_seconds / target.value - choices.table.fixed
        count = min(layers - 1, int(allowed / per_layer))
        plural = "s" if count > 1 else ""
        if count >= 1:
            kept[f"first {count} layer{plural}"] = list(range(count))
            kept[f"{count} layer{plural}, spread"] = evenly_spaced(layers, count)
    return {name: chosen for name, chosen in kept.items() if len(chosen) < layers}


def _measured_rows(
    start: Start, variants: Mapping[str, tuple[PreTrainedModel, bool]], targets: Sequence[Target], run: Run
) -> list[dict[str, Any]]:
    """Measure all variants in the same rounds, and evaluate each as its engine runs it."""
    with ExitStack() as stack:
        served = _all_in_engine(start, variants, stack, run) if run.workers.rank == 0 else {}
        with run.stage("measure", "alternatives: measure") as advance:
            ratios = run.workers.first(lambda: _ratios(start, served, advance))
        dense = evaluate_dense(start, run)
        rows = []
        for name, (model, _) in variants.items():
            found = evaluate(start, served.get(name, model), f"alternatives: {name}", run)
            differences = run.workers.first(partial(found.differences, start.task, dense))
            value, low, high = ratios[name]
            rows.append(
                {
                    "name": name,
                    "metric": start.main_metric(found.metrics),
                    "interval": start.main_interval(found.intervals),
                    "difference_interval": start.main_interval(differences),
                    "speedup": value,
                    "low": low,
                    "high": high,
                    "bytes_on_disk": _bytes(served.get(name, model), model),
                    "sentence": _sentence(name, value, targets),
                    "targets": _names(targets),
                }
            )
    return rows


def _all_in_engine(
    start: Start, variants: Mapping[str, tuple[PreTrainedModel, bool]], stack: ExitStack, run: Run
) -> dict[str, PreTrainedModel]:
    """Return the dense model and all variants as the engine runs them; files last until the stack closes."""
    served = {"dense": dense_in_engine(start, run)}
    for name, (model, quantized) in variants.items():
        served[name] = run_in_engine(
            model,
            start.setting,
            Path(stack.enter_context(tempfile.TemporaryDirectory())),
            quantize=start.setting.quantize if quantized else None,
            samples=calibration_inputs(start),
        )
    return served


def _ratios(
    start: Start, served: Mapping[str, PreTrainedModel], advance: Advance
) -> dict[str, tuple[float, float, float]]:
    """Measure all models in the same rounds; return speedups over the dense one, with their intervals."""
    comparison = compare_models(  # not with the models themselves: they are evaluated in float32
        {name: for_measuring(model, start.setting) for name, model in served.items()},
        start.setting,
        max_seconds=start.options.measure_seconds * len(served) / 2,
        progress=lambda rounds, used: advance(used, 1.0),
    )
    ratios = {name: comparison.speedup(name) for name in served}
    return {name: (ratio.value, ratio.low, ratio.high) for name, ratio in ratios.items()}


def _names(targets: Sequence[Target]) -> list[str]:
    return sorted(target.name for target in targets)


def _bytes(served: PreTrainedModel, model: PreTrainedModel) -> int:
    """Return the size of an exported file, or of the weights of a model in torch."""
    if isinstance(served, ExportedModel):
        return sum(file.stat().st_size for file in files_of(served.file))
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _sentence(name: str, speedup: float, targets: Sequence[Target]) -> str:
    """Say which targets int8 alone meets, and what the other alternatives are."""
    if name != INT8_ALONE:
        return (
            "The member as it is before quantisation."
            if "without" in name
            else "Layers dropped, no training."
        )
    met = [target.name for target in targets if target.kind == "speedup" and target.value <= speedup]
    if not met:
        return f"int8 alone is {speedup:.2f}x as fast, which meets none of the targets."
    return f"int8 alone is {speedup:.2f}x as fast, which meets {' and '.join(met)} without pruning."

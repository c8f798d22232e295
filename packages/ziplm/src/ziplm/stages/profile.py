"""Profile: the latency table, with the time of every size of every branch and of the rest of the model."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from latency_profiler import Family, LatencyCurve, LatencyTable, Timing, profile_families
from transformers import PreTrainedModel

from ziplm.architectures.base import Size
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import leading_parts
from ziplm.options.setting import Setting
from ziplm.stages.engine import Samples, TableEngine, run_in_engine
from ziplm.stages.export_graph import file_inputs
from ziplm.stages.levels import seconds_of
from ziplm.stages.measure import measure
from ziplm.stages.sized_branches import Call, measured_sizes, sized_branches
from ziplm.stages.workload import (
    clock_of,
    dtype_of,
    environment_of,
    generation,
    kept_seed,
    random_tokens,
    require_finite_outputs,
    setting_for,
)

QUANTIZED_SPEEDUP = "quantized speedup"
"""Detail of a table's environment: the speedup of the dense model that is only quantised."""
CACHE_LENGTHS = 3  # number of cache lengths at which a decoding step is measured; others are interpolated


def branch_calls(setting: Setting, kind: str) -> dict[Call, float]:
    """Return the calls of a branch in one measurement, each with its weight: how often it occurs.

    A forward pass is one call. A generation has one call for the prompt, and one for each new token except
    the last, which no branch processes; a few lengths of the cache represent all of these.
    """
    if setting.regime != "generate":
        return {Call(length): share for length, share in setting.shares.items()}
    calls = {Call(length, 0): share for length, share in setting.shares.items()} | _decoding(setting)
    if kind.startswith("attention"):
        return calls
    return {  # without a cache, calls with the same number of tokens are the same
        Call(tokens): sum(share for call, share in calls.items() if call.tokens == tokens)
        for tokens in sorted({call.tokens for call in calls})
    }


def _decoding(setting: Setting) -> dict[Call, float]:
    """Return a few decoding steps with weights.

    If the time is linear in the length of the cache, the weighted sum is the time of all decoding steps.
    """
    lengths = [prompt + made for prompt in setting.shares for made in range(setting.new_tokens - 1)]
    shares = [share for share in setting.shares.values() for _ in range(setting.new_tokens - 1)]
    if not lengths:
        return {}
    measured = sorted({round(at) for at in np.linspace(min(lengths), max(lengths), CACHE_LENGTHS)})
    hats = np.eye(len(measured))  # 1 at one of the lengths, 0 at the others, linear in between
    return {
        Call(1, length): float(np.interp(lengths, measured, hat) @ shares)
        for length, hat in zip(measured, hats, strict=True)
    }


def latency_table(
    model: PreTrainedModel,
    setting: Setting,
    *,
    round_to: int = 1,
    narrow: bool = True,
    rel_error: float = 0.02,
    max_seconds: float = 120.0,
    progress: Callable[[int, float], None] | None = None,
) -> LatencyTable:
    """Measure a model's branches at all sizes of the grid, and the rest of the model, in the same rounds.

    A branch is measured with its residual connection and norms; of a removed branch, what remains of it is
    measured, at least the bias of its output matrix. The fixed part is the time of the model with all
    branches removed, minus that of their remains. (The dense model's time minus that of its branches would be
    the difference of two large numbers, and mostly noise.)

    In engines that run files, a branch alone takes longer than inside of a model, because its inputs and
    outputs are copied, and no operation is fused with those of its neighbours. There, the fixed part follows
    from the model with all branches at a quarter of their size. If these branches, measured one by one, take
    longer than the whole model, the difference is that overhead, and is taken off all times of branches.

    Args:
        model: the model; it is moved to the setting's device and data type.
        setting: where and on which inputs to measure.
        round_to: FFN widths are multiples of this number.
        narrow: whether to measure narrower heads as well, where the architecture allows them.
        rel_error: relative error at which the measurement stops.
        max_seconds: time limit of the measurement.
        progress: called with the number of rounds and the share of the time used.

    Raises:
        UsageError: if the setting does not fit the model (see `setting_for`).
        NotFinite: if the outputs of the model are not finite.
    """
    architecture = architecture_of(model)
    setting = setting_for(setting, [model])
    model.to(device=setting.device, dtype=dtype_of(setting))  # type: ignore[call-arg]
    require_finite_outputs("the model", model, random_tokens([model], setting, setting.lengths[0]))
    kinds = architecture.kinds(model)
    measured_curves = {
        curve: sizes
        for kind in kinds
        for curve, sizes in measured_sizes(architecture, model, kind, round_to, narrow).items()
    }
    calls = {curve: branch_calls(setting, curve) for curve in measured_curves}
    families = {
        f"{curve} {call}": family
        for curve, sizes in measured_curves.items()
        for call, family in sized_branches(model, setting, sizes, list(calls[curve])).items()
    }
    groups = {
        kind: math.ceil(measured_curves[kind].groups[0] / 4) if setting.runs_files else 0 for kind in kinds
    }
    with kept_seed(setting), tempfile.TemporaryDirectory() as folder:
        tokens = {length: random_tokens([model], setting, length) for length in setting.shares}
        samples = [file_inputs(model, {"input_ids": ids}) for ids in tokens.values()]
        small = run_in_engine(
            _with_groups(model, groups), setting, Path(folder), quantize=setting.quantize, samples=samples
        )
        whole = generation(small, setting.new_tokens) if setting.regime == "generate" else small
        for length, ids in tokens.items():
            families[f"whole {length}"] = Family(lambda _: whole, [1], ids)
        measured = profile_families(
            families,
            rel_error=rel_error,
            max_seconds=max_seconds,
            engine=TableEngine(setting),
            clock=clock_of(setting),
            threads=setting.threads,
            progress=progress,
        )
        details = _quantized_details(model, setting, Path(folder), samples, max_seconds)
    if setting.regime == "generate":
        measured = {name: by_median(curve) for name, curve in measured.items()}
    curves: dict[str, LatencyCurve] = {
        name: _weighted_sum([(measured[f"{name} {call}"], share) for call, share in calls[name].items()])
        for name in measured_curves
    }
    seconds = sum(share * measured[f"whole {length}"](1) for length, share in setting.shares.items())
    environment = environment_of(setting, model.config._attn_implementation)
    environment = replace(environment, details={**environment.details, **details})
    fixed = seconds - _branch_seconds(model, groups, LatencyTable(environment, 0.0, curves))
    if setting.runs_files and fixed < 0:
        overhead = -fixed / len(architecture.branches(model))
        curves = {name: less(curve, overhead) for name, curve in curves.items()}
    return LatencyTable(environment, max(0.0, fixed), curves)


def _branch_seconds(model: PreTrainedModel, groups: Mapping[str, int], table: LatencyTable) -> float:
    """Return the summed time of all branches with at most so many groups, by kind."""
    architecture = architecture_of(model)
    total = 0.0
    for branch in architecture.branches(model):
        kept = Size(min(branch.groups, groups[branch.kind]), branch.group_size)
        total += seconds_of(table, branch.kind, kept, architecture.dense_size(model, branch.kind).width)
    return total


def quantized_speedup_in(table: LatencyTable) -> float:
    """Return how much faster the dense model becomes if it is only quantised; 1 for other tables."""
    return float(table.environment.details.get(QUANTIZED_SPEEDUP, 1.0))


def _quantized_details(
    model: PreTrainedModel, setting: Setting, folder: Path, samples: Samples, max_seconds: float
) -> dict[str, float]:
    """Measure the dense model as it is and quantised, since speedups refer to the former."""
    if setting.quantize is None:
        return {}
    dense, quantized = (
        run_in_engine(model, setting, folder / name, quantize=quantize, samples=samples)
        for name, quantize in (("dense", None), ("quantized", setting.quantize))
    )
    return {QUANTIZED_SPEEDUP: measure(dense, quantized, setting, max_seconds=max_seconds / 4).speedup}


def by_median(curve: LatencyCurve) -> LatencyCurve:
    """Return the curve of the median times; the profiler itself reports the fastest tenth.

    A decoding step is short, a generation is long. The fastest of many short samples may coincide with a
    quiet moment of the machine, or find its weights in a CPU cache; a generation, and with it the fixed part,
    does not. In one run of 12 rounds on a shared machine (GPT2 with 12 layers, 768 hidden, one thread), the
    table added up to 0.84 of the dense model's time with the fastest tenth, and to 1.02 with medians. How
    much of this is due to the cache and how much to the load was not determined.
    """
    timings = tuple(replace(timing, seconds=timing.median) for timing in curve.timings)
    return LatencyCurve.fit(curve.sizes, timings)


def less(curve: LatencyCurve, overhead: float) -> LatencyCurve:
    """Return a curve with a constant time taken off all sizes."""

    def without(timing: Timing) -> Timing:
        names = ("seconds", "low", "high", "minimum", "median", "maximum")
        return replace(timing, **{name: max(0.0, getattr(timing, name) - overhead) for name in names})

    seconds = tuple(max(0.0, value - overhead) for value in curve.seconds)
    return LatencyCurve(curve.sizes, seconds, tuple(map(without, curve.timings)))


def _weighted_sum(parts: Sequence[tuple[LatencyCurve, float]]) -> LatencyCurve:
    """Add up curves over the same sizes; a single curve is returned unchanged, with its timings."""
    first, share = parts[0]
    if len(parts) == 1 and share == 1:
        return first
    seconds = [sum(share * curve(size) for curve, share in parts) for size in first.sizes]
    return LatencyCurve(first.sizes, tuple(seconds))


def _with_groups(model: PreTrainedModel, groups: Mapping[str, int]) -> PreTrainedModel:
    """Return the model with branches of at most so many groups, by kind; everything else is shared."""
    architecture = architecture_of(model)
    small: PreTrainedModel = structure_copy(model)  # type: ignore[assignment]
    for branch in architecture.branches(model):
        layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)
        kept = min(branch.groups, groups[branch.kind])
        architecture.install(small, branch, leading_parts(layer, spec, kept))
    architecture.number_caches(small)
    return small.eval()

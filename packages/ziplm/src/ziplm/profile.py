"""Stage 3, profile: what every size of every module costs, and what the rest of the model does."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from latency_profiler import Family, LatencyCurve, LatencyTable, profile_families
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import KINDS, Kind, adapter_for
from ziplm.adapters.pieces import structure_copy
from ziplm.benchmarking import Setting, generation, random_tokens
from ziplm.errors import UsageError
from ziplm.levels import size_grid

CACHE_LENGTHS = 3  # at which a step of decoding is measured; in between, times are interpolated


@dataclass(frozen=True)
class Step:
    """Something that a module does while a model is measured.

    Attributes:
        tokens: that it takes at once.
        past: tokens in its cache before; None: it has no cache.
    """

    tokens: int
    past: int | None = None


def module_steps(setting: Setting, kind: Kind) -> dict[Step, float]:
    """All that a module of a kind does in one measurement, and how often (or for which share of it).

    A forward pass is one step. A generation is one over the prompt, and one for each new token but the last,
    which no module sees; of those, a few lengths of the cache stand for all.
    """
    if setting.regime != "generate":
        return {Step(length): share for length, share in setting.shares.items()}
    steps = {Step(length, 0): share for length, share in setting.shares.items()} | _decoding(setting)
    if kind == "attention":
        return steps
    return {  # to a module without a cache, steps of as many tokens are the same
        Step(tokens): sum(share for step, share in steps.items() if step.tokens == tokens)
        for tokens in sorted({step.tokens for step in steps})
    }


def _decoding(setting: Setting) -> dict[Step, float]:
    """A few steps of decoding, with weights by which their times add up to that of all, if it is linear."""
    lengths = [prompt + made for prompt in setting.shares for made in range(setting.new_tokens - 1)]
    shares = [share for share in setting.shares.values() for _ in range(setting.new_tokens - 1)]
    if not lengths:
        return {}
    measured = sorted({round(at) for at in np.linspace(min(lengths), max(lengths), CACHE_LENGTHS)})
    hats = np.eye(len(measured))  # 1 at one of the lengths, 0 at the others, linear in between
    return {
        Step(1, length): float(np.interp(lengths, measured, hat) @ shares)
        for length, hat in zip(measured, hats, strict=True)
    }


def latency_table(
    model: PreTrainedModel,
    setting: Setting,
    *,
    round_to: int = 1,
    rel_error: float = 0.02,
    max_seconds: float = 120.0,
    progress: Callable[[int, float], None] | None = None,
) -> LatencyTable:
    """Measure a model's real modules at all sizes of the grid, and the rest of it, in the same rounds.

    A module is measured with its residual connection and norms, a removed one as what is left of it. The
    fixed part is what the model takes with all modules removed, beyond what is left of those. (The dense
    model's time less that of its modules would be the difference of two large numbers, and mostly noise.)

    Widths are those of the grid, down to multiples of `round_to`.

    Raises:
        UsageError: if the setting does not go with the model (`Setting.for_models`).
    """
    adapter = adapter_for(model)
    setting = setting.for_models([model])
    model.to(device=setting.device, dtype=setting.dtype)  # type: ignore[call-arg]
    steps = {kind: module_steps(setting, kind) for kind in KINDS}
    families = {
        f"{kind} {step}": family
        for kind in KINDS
        for step, family in _families(model, setting, kind, list(steps[kind]), round_to).items()
    }
    bare = _without_modules(model)
    rest = generation(bare, setting.new_tokens) if setting.regime == "generate" else bare
    for length in setting.shares:
        families[f"rest {length}"] = Family(lambda _: rest, [1], random_tokens([model], setting, length))
    with setting.kept_seed():
        measured = profile_families(
            families,
            rel_error=rel_error,
            max_seconds=max_seconds,
            engine=setting.engine,
            clock=setting.clock,
            threads=setting.threads,
            progress=progress,
        )
    if setting.regime == "generate":
        measured = {name: by_median(curve) for name, curve in measured.items()}
    curves: dict[str, LatencyCurve] = {
        kind: _weighted_sum([(measured[f"{kind} {step}"], share) for step, share in steps[kind].items()])
        for kind in KINDS
    }
    whole = sum(share * measured[f"rest {length}"](1) for length, share in setting.shares.items())
    left = sum(curves[module.kind](0) for module in adapter.modules(model))
    environment = setting.environment(model.config._attn_implementation)
    return LatencyTable(environment, max(0.0, whole - left), curves)


def by_median(curve: LatencyCurve) -> LatencyCurve:
    """The same curve by medians, where a profile takes the fastest tenth of the samples.

    A step of decoding is short, a generation long. The fastest of many short samples may have met a quiet
    moment of the machine, or weights still in a cache of the CPU; a generation, and so the fixed part, meets
    neither. In one run of 12 rounds on a shared machine (GPT2 of 12 layers, 768 hidden, one thread), the sum
    of the table was 0.84 of the dense model's time by the fastest tenth, and 1.02 by medians; how much of
    that is the cache and how much the load was not told apart.
    """
    timings = tuple(replace(timing, seconds=timing.median) for timing in curve.timings)
    return LatencyCurve.fit(curve.sizes, timings)


def _weighted_sum(parts: Sequence[tuple[LatencyCurve, float]]) -> LatencyCurve:
    """Curves over the same sizes as one; a single curve as it is, with its record."""
    first, share = parts[0]
    if len(parts) == 1 and share == 1:
        return first
    seconds = [sum(share * curve(size) for curve, share in parts) for size in first.sizes]
    return LatencyCurve(first.sizes, tuple(seconds))


def _without_modules(model: PreTrainedModel) -> PreTrainedModel:
    """The model with all its modules removed, sharing all else."""
    adapter = adapter_for(model)
    bare: PreTrainedModel = structure_copy(model)  # type: ignore[assignment]
    for module in adapter.modules(model):
        layer = adapter.layers(model)[module.layer]
        adapter.install(bare, module, adapter.leading(layer, module, 0))
    adapter.number_caches(bare)
    return bare.eval()


def _families(
    model: PreTrainedModel, setting: Setting, kind: Kind, steps: list[Step], round_to: int
) -> dict[Step, Family]:
    """For each step, the module at all sizes of the grid, made of the first one that has all its groups."""
    adapter = adapter_for(model)
    dense = adapter.dense_groups(model, kind)
    module = next((m for m in adapter.modules(model) if m.kind == kind and m.groups == dense), None)
    if module is None:
        raise UsageError(
            f"no {kind} of this model has its full size, so that its times cannot be measured",
            "give --latency-table of the dense model",
        )
    layer = adapter.layers(model)[module.layer]

    @functools.cache  # all steps share the weights of a size
    def resized(groups: int) -> nn.Module:
        made = structure_copy(layer)
        for name, part in adapter.leading(layer, module, groups).items():
            setattr(made, name, part)
        return made.eval()

    def hidden(tokens: int) -> torch.Tensor:
        shape = (setting.batch_size, tokens, model.config.hidden_size)
        random = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return random.to(device=setting.device, dtype=setting.dtype)

    def family(step: Step) -> Family:
        past = None if step.past is None else hidden(step.past)
        inputs = hidden(step.tokens)
        return Family(
            lambda groups: adapter.block(resized(groups), kind, past),
            size_grid(kind, dense, round_to),
            (inputs, adapter.attention_mask(model, inputs, step.past or 0)),
        )

    return {step: family(step) for step in steps}

"""Stage 3, profile: what every size of every module costs, and what the rest of the model does."""

from collections.abc import Callable

import torch
from latency_profiler import Family, LatencyTable, profile_families
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import KINDS, Kind, adapter_for
from ziplm.adapters.base import structure_copy
from ziplm.benchmarking import Setting, random_tokens
from ziplm.errors import UsageError
from ziplm.levels import size_grid

REST = "rest"


def latency_table(
    model: PreTrainedModel,
    setting: Setting,
    *,
    rel_error: float = 0.02,
    max_seconds: float = 120.0,
    progress: Callable[[int, float], None] | None = None,
) -> LatencyTable:
    """Measure a model's real modules at all sizes of the grid, and the rest of it, in the same rounds.

    A module is measured with its residual connection and norms, a removed one as what is left of it. The
    fixed part is what the model takes with all modules removed, beyond what is left of those. (The dense
    model's time less that of its modules would be the difference of two large numbers, and mostly noise.)
    """
    adapter = adapter_for(model)
    model.to(device=setting.device, dtype=setting.dtype)  # type: ignore[call-arg]
    tokens = random_tokens([model], setting)
    hidden = torch.randn(*tokens.shape, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(device=setting.device, dtype=setting.dtype)
    families: dict[str, Family] = {
        kind: Family(_builder(model, kind), size_grid(kind, adapter.dense_groups(model, kind)), hidden)
        for kind in KINDS
    }
    curves = profile_families(
        {**families, REST: Family(lambda _: _without_modules(model), [1], tokens)},
        rel_error=rel_error,
        max_seconds=max_seconds,
        engine=setting.engine,
        clock=setting.clock,
        threads=setting.threads,
        progress=progress,
    )
    rest = curves.pop(REST)(1) - sum(curves[module.kind](0) for module in adapter.modules(model))
    environment = setting.environment(model.config._attn_implementation)
    return LatencyTable(environment, max(0.0, rest), curves)


def _without_modules(model: PreTrainedModel) -> nn.Module:
    """The model with all its modules removed, sharing all else."""
    adapter = adapter_for(model)
    bare: PreTrainedModel = structure_copy(model)  # type: ignore[assignment]
    for module in adapter.modules(model):
        layer = adapter.layers(model)[module.layer]
        adapter.install(bare, module, adapter.leading(layer, module, 0))
    return bare.eval()


def _builder(model: PreTrainedModel, kind: Kind) -> Callable[[int], nn.Module]:
    """From a number of groups to a block with that many, made of the first module that has all of them."""
    adapter = adapter_for(model)
    dense = adapter.dense_groups(model, kind)
    module = next((m for m in adapter.modules(model) if m.kind == kind and m.groups == dense), None)
    if module is None:
        raise UsageError(
            f"no {kind} of this model has its full size, so that its times cannot be measured",
            "give --latency-table of the dense model",
        )
    layer = adapter.layers(model)[module.layer]

    def build(groups: int) -> nn.Module:
        resized = structure_copy(layer)
        for name, part in adapter.leading(layer, module, groups).items():
            setattr(resized, name, part)
        return adapter.block(resized, kind).eval()

    return build

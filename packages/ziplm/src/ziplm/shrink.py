"""Remove heads, columns and whole modules: for real (`shrink`), or by zeros (`mask`)."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from obs_structured import Trace
from transformers import PreTrainedModel

from ziplm.adapters import KINDS, Adapter, Module, adapter_for
from ziplm.errors import UsageError


def shrink(model: PreTrainedModel, levels: Sequence[int], traces: Sequence[Trace | None]) -> PreTrainedModel:
    """A physically smaller model.

    Args:
        model: a BERT or GPT2 of transformers, dense or shrunk before; it is not changed.
        levels: how many groups (heads or columns) each module loses, in the order of `Adapter.modules`.
            All of them removes the module; the bias of its output matrix stays.
        traces: for each module the trace of its output matrix, made by `obs_structured.prune`; None where the
            level is 0.

    Returns:
        A model of the corresponding class of `ziplm.models`. Parameters that did not change (embeddings,
        norms, the head, whole modules) are shared with `model`: copy it to train one and keep the other.
    """
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    _check_levels(modules, levels, traces)
    state = model.state_dict()
    groups = {}
    for place, (module, removed) in enumerate(zip(modules, levels, strict=True)):
        groups[module.layer, module.kind] = module.groups - removed
        if removed:
            _replace_module(state, adapter, model, module, _trace_of(module, traces[place]), removed)
    sizes = [[groups[layer, kind] for layer in range(len(modules) // len(KINDS))] for kind in KINDS]
    return _assembled(adapter, model, state, *sizes)


@torch.no_grad()
def mask(model: PreTrainedModel, levels: Sequence[int], traces: Sequence[Trace | None]) -> PreTrainedModel:
    """A copy of the model, of the same size, that computes what the shrunk one does.

    Columns of the output matrices that `shrink` removes are set to zero. It takes the arguments of `shrink`.
    """
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    _check_levels(modules, levels, traces)
    masked = copy.deepcopy(model)
    for place, (module, removed) in enumerate(zip(modules, levels, strict=True)):
        if removed:
            trace = _trace_of(module, traces[place])
            weight, bias = adapter.weight(masked, module), adapter.bias(masked, module)
            weight.zero_()
            weight[:, trace.columns(removed)] = trace.weight(removed).to(weight)
            bias += trace.bias_shift(removed).to(bias)
    return masked


def _check_levels(modules: list[Module], levels: Sequence[int], traces: Sequence[Trace | None]) -> None:
    if not len(modules) == len(levels) == len(traces):
        raise UsageError(
            f"there are {len(levels)} levels and {len(traces)} traces for {len(modules)} modules",
            "give one of each for every module",
        )
    for module, removed in zip(modules, levels, strict=True):
        if not 0 <= removed <= module.groups:
            raise UsageError(
                f"{module.name} cannot lose {removed} groups",
                f"it has {module.groups}: give 0 to {module.groups}",
            )


def _trace_of(module: Module, trace: Trace | None) -> Trace:
    if trace is None:
        raise UsageError(f"{module.name} has no trace", "prune its matrix, or give it level 0")
    return trace


def _replace_module(
    state: dict[str, torch.Tensor],
    adapter: Adapter,
    model: PreTrainedModel,
    module: Module,
    trace: Trace,
    removed: int,
) -> None:
    """Put the parameters of a smaller module in the place of the present ones in a state dict."""
    layer = adapter.layers(model)[module.layer]
    prefix = next(name for name, candidate in model.named_modules() if candidate is layer)
    new = adapter.build(model, module, trace, removed)
    for name in adapter.parts(model, module):
        for key in [key for key in state if key.startswith(f"{prefix}.{name}.")]:
            del state[key]
        state.update({f"{prefix}.{name}.{key}": value for key, value in new[name].state_dict().items()})


def _assembled(
    adapter: Adapter,
    model: PreTrainedModel,
    state: dict[str, torch.Tensor],
    heads: list[int],
    widths: list[int],
) -> PreTrainedModel:
    """A model of the shrunk class around tensors that exist already."""
    shrunk_class = adapter.shrunk_class(model)
    settings = model.config.to_dict()
    for own in ("model_type", "architectures", "transformers_version", "auto_map"):
        settings.pop(own, None)
    config_class: Any = shrunk_class.config_class
    config = config_class(**{**settings, "zip_heads": heads, "zip_widths": widths})
    config._name_or_path = model.config._name_or_path
    with torch.device("meta"):
        shrunk = shrunk_class._from_config(config, attn_implementation=model.config._attn_implementation)
    shrunk.load_state_dict(state, strict=True, assign=True)
    shrunk.tie_weights()
    for name, buffer in model.named_buffers():  # those that no state dict holds
        owner, _, leaf = name.rpartition(".")
        shrunk.get_submodule(owner)._buffers[leaf] = buffer
    if model.can_generate():
        shrunk.generation_config = copy.deepcopy(model.generation_config)
    return shrunk.train(model.training)

"""Shrink: remove heads, columns and whole branches physically (`shrink`), or by zeros (`mask`)."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from obs_structured import Trace
from transformers import PreTrainedModel

from ziplm.architectures.base import PARTS, Architecture, Branch
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import pruned_output, pruned_parts
from ziplm.errors import UsageError


def shrink(model: PreTrainedModel, removed: Sequence[int], traces: Sequence[Trace | None]) -> PreTrainedModel:
    """Return a physically smaller model.

    Args:
        model: a model of a known architecture, dense or already shrunk; it is not changed.
        removed: number of groups (heads or FFN columns) that each branch loses: attention and FFN of the
            first layer, then of the second, and so on. A branch that loses all of them is removed; only the
            bias of its output matrix stays.
        traces: for each branch the trace of its output matrix, made by `obs_structured.prune`; None where
            nothing is removed.

    Returns:
        A model of the corresponding class for shrunk models. Parameters that did not change (embeddings,
        norms, the head, whole branches) are shared with `model`: copy it before training one of the two.

    Raises:
        UsageError: if the arguments do not fit the model.
    """
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    _check_removed(branches, removed, traces)
    state = model.state_dict()
    groups = {}
    for index, (branch, count) in enumerate(zip(branches, removed, strict=True)):
        groups[branch.layer, branch.part] = branch.groups - count
        if count:
            _replace_branch(state, architecture, model, branch, _trace_of(branch, traces[index]), count)
    sizes = [[groups[layer, part] for layer in range(len(branches) // len(PARTS))] for part in PARTS]
    return _assembled(architecture, model, state, *sizes)


@torch.no_grad()
def mask(model: PreTrainedModel, removed: Sequence[int], traces: Sequence[Trace | None]) -> PreTrainedModel:
    """Return a copy of the model that has its original size and computes the same as the shrunk one.

    The columns of the output matrices that `shrink` would remove are set to zero. The arguments are those of
    `shrink`.
    """
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    _check_removed(branches, removed, traces)
    masked = copy.deepcopy(model)
    for index, (branch, count) in enumerate(zip(branches, removed, strict=True)):
        if count:
            trace = _trace_of(branch, traces[index])
            new_weight, new_bias = pruned_output(architecture, masked, branch, trace, count)
            weight, bias = architecture.weight(masked, branch), architecture.bias(masked, branch)
            weight.zero_()
            weight[:, trace.columns(count)] = new_weight
            if bias is not None and new_bias is not None:
                bias.copy_(new_bias)
    return masked


def _check_removed(branches: list[Branch], removed: Sequence[int], traces: Sequence[Trace | None]) -> None:
    if not len(branches) == len(removed) == len(traces):
        raise UsageError(
            f"there are {len(removed)} counts and {len(traces)} traces for {len(branches)} branches",
            "give one of each for every branch",
        )
    for branch, count in zip(branches, removed, strict=True):
        if not 0 <= count <= branch.groups:
            raise UsageError(
                f"{branch.name} cannot lose {count} groups",
                f"it has {branch.groups}: give 0 to {branch.groups}",
            )


def _trace_of(branch: Branch, trace: Trace | None) -> Trace:
    if trace is None:
        raise UsageError(f"{branch.name} has no trace", "prune its matrix, or remove nothing from it")
    return trace


def _replace_branch(
    state: dict[str, torch.Tensor],
    architecture: Architecture,
    model: PreTrainedModel,
    branch: Branch,
    trace: Trace,
    removed: int,
) -> None:
    """Replace the parameters of a branch in a state dict by those of a smaller one."""
    layer = architecture.layers(model)[branch.layer]
    prefix = next(name for name, candidate in model.named_modules() if candidate is layer)
    new = pruned_parts(architecture, model, branch, trace, removed)
    for name in architecture.parts(model, branch):
        for key in [key for key in state if key.startswith(f"{prefix}.{name}.")]:
            del state[key]
        state.update({f"{prefix}.{name}.{key}": value for key, value in new[name].state_dict().items()})


def _assembled(
    architecture: Architecture,
    model: PreTrainedModel,
    state: dict[str, torch.Tensor],
    heads: list[int],
    widths: list[int],
) -> PreTrainedModel:
    """Build a model of the shrunk class around existing tensors."""
    shrunk_class = architecture.shrunk_class(model)
    settings = model.config.to_dict()
    for name in ("model_type", "architectures", "transformers_version", "auto_map"):
        settings.pop(name, None)
    config_class: Any = shrunk_class.config_class
    config = config_class(**{**settings, "zip_heads": heads, "zip_widths": widths})
    config._name_or_path = model.config._name_or_path
    with torch.device("meta"):
        shrunk = shrunk_class._from_config(config, attn_implementation=model.config._attn_implementation)
    shrunk.load_state_dict(state, strict=True, assign=True)
    shrunk.tie_weights()
    for name, buffer in model.named_buffers():
        if name not in state:  # a state dict does not contain all buffers
            owner, _, leaf = name.rpartition(".")
            shrunk.get_submodule(owner)._buffers[leaf] = buffer
    if model.can_generate():
        shrunk.generation_config = copy.deepcopy(model.generation_config)
    return shrunk.train(model.training)

"""Generic surgery: build a branch with fewer groups, for any architecture."""

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch, Kind
from ziplm.architectures.branch_module import structure_copy
from ziplm.errors import UsageError


def pruned_parts(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: Trace, removed: int
) -> dict[str, nn.Module]:
    """Build the parts of a branch with `removed` groups fewer, for `Architecture.install`.

    The output matrix and its bias come from the trace; the rows of the other matrices that belong to the
    remaining columns are copied. Everything else (norms, settings) is shared with the model, which is not
    changed.
    """
    layer = architecture.layers(model)[branch.layer]
    if (trace.groups, trace.group_size) != (branch.groups, branch.group_size):
        raise UsageError(
            f"the trace has {trace.groups} groups of {trace.group_size}, but {branch.name} has "
            f"{branch.groups} of {branch.group_size}",
            "prune this model's own matrices",
        )
    bias = architecture.bias(model, branch).detach()
    new_bias = bias + trace.bias_shift(removed).to(bias)
    columns = trace.columns(removed).to(bias.device)
    state = architecture._state(layer, branch.kind, columns, trace.weight(removed).to(bias), new_bias)
    return _parts_around(architecture, layer, branch.kind, trace.groups - removed, state)


def reordered_layer(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: Trace
) -> nn.Module:
    """Return the branch's layer with its groups in reverse order of removal: the last to go comes first."""
    layer = architecture.layers(model)[branch.layer]
    groups = trace.order.flip(0)
    columns = groups[:, None] * branch.group_size + torch.arange(branch.group_size, device=groups.device)
    weight = architecture.weight(model, branch).detach()
    bias = architecture.bias(model, branch).detach()
    columns = columns.flatten().to(weight.device)
    state = architecture._state(layer, branch.kind, columns, weight[:, columns], bias)
    copy = structure_copy(layer)
    for name, part in _parts_around(architecture, layer, branch.kind, branch.groups, state).items():
        setattr(copy, name, part)
    return copy


def leading_parts(
    architecture: Architecture,
    layer: nn.Module,
    branch: Branch,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> dict[str, nn.Module]:
    """Build the parts of a branch reduced to its first groups, with views of the layer's tensors if possible.

    Args:
        architecture: the architecture of the layer.
        layer: a layer, such as `reordered_layer` returns.
        branch: the branch of the layer.
        groups: number of groups to keep, from 0 to all.
        weight: (hidden, groups * group_size), replaces the layer's own output matrix.
        bias: (hidden,), replaces the layer's own bias.
    """
    output = architecture._output_layer(layer, branch.kind)
    assert isinstance(output.bias, torch.Tensor)
    columns = slice(0, groups * branch.group_size)
    if weight is None:
        assert isinstance(output.weight, torch.Tensor)
        weight = architecture._out_in(output.weight.detach())[:, columns]
    bias = output.bias.detach() if bias is None else bias
    state = architecture._state(layer, branch.kind, columns, weight, bias)
    return _parts_around(architecture, layer, branch.kind, groups, state)


def _parts_around(
    architecture: Architecture, layer: nn.Module, kind: Kind, groups: int, state: dict[str, torch.Tensor]
) -> dict[str, nn.Module]:
    """Build the parts of a resized branch around existing tensors, without allocating new ones."""
    layer = structure_copy(layer)
    with torch.device("meta"):
        architecture._resize(layer, kind, groups)
    parts = {name: getattr(layer, name) for name in architecture._parts(kind)}
    for name, part in parts.items():
        tensors = {
            key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")
        }
        part.load_state_dict(tensors, strict=False, assign=True)
        part.train(layer.training)
    return parts

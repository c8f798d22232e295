"""Generic surgery: build a branch with fewer groups, for any architecture."""

from collections.abc import Iterator

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch, out_in, part_names
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.zip_declaration import BranchSpec, Rows
from ziplm.architectures.zip_layers import Constant, groups_of, resize
from ziplm.errors import UsageError

Groups = torch.Tensor | slice
"""Groups to keep: their indices, or a leading slice, which allows views."""


def pruned_parts(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: Trace, removed: int
) -> dict[str, nn.Module]:
    """Build the parts of a branch with `removed` groups fewer, for `Architecture.install`.

    The output matrix and its bias come from the trace; the rows of the other matrices that belong to the
    remaining groups are copied. Everything else (norms, settings) is shared with the model, which is not
    changed.
    """
    if (trace.groups, trace.group_size) != (branch.groups, branch.group_size):
        raise UsageError(
            f"the trace has {trace.groups} groups of {trace.group_size}, but {branch.name} has "
            f"{branch.groups} of {branch.group_size}",
            "prune this model's own matrices",
        )
    layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)
    device = model.device
    weight, bias = pruned_output(architecture, model, branch, trace, removed)
    state = _state(layer, spec, trace.kept(removed).to(device), weight, bias)
    return _parts_around(layer, spec, branch.groups - removed, state, model.config.hidden_size)


def pruned_output(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: Trace, removed: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output matrix (hidden, columns left) and its bias (hidden,) after `removed` groups are gone.

    An output matrix without a bias gets none: its trace must not be centred.

    Raises:
        UsageError: if the trace moves the mean output into a bias that does not exist.
    """
    own = architecture.weight(model, branch)
    weight, bias = trace.weight(removed).to(own), architecture.bias(model, branch)
    shift = trace.bias_shift(removed)
    if bias is None:
        if bool(shift.any()):
            raise UsageError(
                f"the trace of {branch.name} is centred, but its output matrix has no bias",
                "prune it without a mean",
            )
        return weight, None
    return weight, bias.detach() + shift.to(bias)


def reordered_layer(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: Trace
) -> nn.Module:
    """Return the branch's layer with its groups in reverse order of removal: the last to go comes first."""
    layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)
    weight, bias = architecture.weight(model, branch).detach(), architecture.bias(model, branch)
    groups = trace.order.flip(0).to(weight.device)
    columns = (
        groups[:, None] * branch.group_size + torch.arange(branch.group_size, device=groups.device)
    ).flatten()
    state = _state(layer, spec, groups, weight[:, columns], None if bias is None else bias.detach())
    copy = structure_copy(layer)
    for name, part in _parts_around(layer, spec, branch.groups, state, model.config.hidden_size).items():
        setattr(copy, name, part)
    return copy


def leading_parts(
    layer: nn.Module,
    spec: BranchSpec,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> dict[str, nn.Module]:
    """Build the parts of a branch reduced to its first groups, with views of the layer's tensors if possible.

    Args:
        layer: a layer, such as `reordered_layer` returns.
        spec: where the branch is within the layer.
        groups: number of groups to keep, from 0 to all.
        weight: (hidden, groups * group_size), replaces the layer's own output matrix.
        bias: (hidden,), replaces the layer's own bias; ignored if there is none.
    """
    output = layer.get_submodule(spec.output)
    if isinstance(output, Constant):  # removed before: there is nothing to choose from
        return {name: getattr(layer, name) for name in part_names(spec)}
    own = out_in(output)
    if weight is None:
        weight = own.detach()[:, : groups * spec.group_size]
    if output.bias is None:
        bias = None
    elif bias is None:
        assert isinstance(output.bias, torch.Tensor)
        bias = output.bias.detach()
    return _parts_around(layer, spec, groups, _state(layer, spec, slice(0, groups), weight, bias), len(own))


def _state(
    layer: nn.Module, spec: BranchSpec, groups: Groups, weight: torch.Tensor, bias: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return the parameters of a branch reduced to some groups, by their paths within the layer.

    Args:
        layer: the layer that contains the branch.
        spec: where the branch is.
        groups: the groups to keep.
        weight: (hidden, columns left), the new output matrix; if it has no columns, only the bias is left.
        bias: (hidden,), the new bias; None if the output matrix has none.
    """
    state = {} if bias is None else {f"{spec.output}.bias": bias}
    if not weight.shape[1]:
        return state
    output = layer.get_submodule(spec.output)
    state[f"{spec.output}.weight"] = weight if isinstance(output, nn.Linear) else weight.mT.contiguous()
    before = groups_of(layer, spec)
    for rows in spec.rows:
        linear = layer.get_submodule(rows.path)
        chosen = _kept_rows(out_in(linear).detach(), rows, before, groups)
        if not isinstance(linear, nn.Linear):  # stored as (in, out)
            is_view = isinstance(groups, slice) and len(rows.roles) == 1
            chosen = chosen.mT if is_view else chosen.mT.contiguous()
        state[f"{rows.path}.weight"] = chosen
        if isinstance(linear.bias, torch.Tensor):
            state[f"{rows.path}.bias"] = _kept_rows(linear.bias.detach(), rows, before, groups)
    if spec.kept is not None:
        owner, _, name = spec.kept.rpartition(".")
        numbers = getattr(layer.get_submodule(owner), name, torch.arange(before, device=weight.device))
        state[spec.kept] = numbers[groups]
    return state


def _kept_rows(matrix: torch.Tensor, rows: Rows, before: int, groups: Groups) -> torch.Tensor:
    """Return the rows of the kept groups from each block of a matrix or a bias; a view if possible."""
    blocks = matrix.unflatten(0, (len(rows.roles), before, rows.per_group))
    return blocks[:, groups].flatten(0, 2)


def _parts_around(
    layer: nn.Module, spec: BranchSpec, groups: int, state: dict[str, torch.Tensor], hidden: int
) -> dict[str, nn.Module]:
    """Build the parts of a resized branch around existing tensors, without allocating new ones."""
    layer = structure_copy(layer)
    with torch.device("meta"):
        resize(layer, spec, groups, hidden)
    parts = {name: getattr(layer, name) for name in part_names(spec)}
    for name, part in parts.items():
        part.load_state_dict(dict(_below(state, name)), strict=False, assign=True)
        part.train(layer.training)
    return parts


def _below(state: dict[str, torch.Tensor], name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the entries of a state that belong to a child, by their paths within it."""
    for key, value in state.items():
        if key.startswith(f"{name}."):
            yield key.removeprefix(f"{name}."), value

"""Generic surgery: build a branch of a smaller size, for any architecture."""

from collections.abc import Iterator

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import AttentionTrace, BranchTrace, heads_of, narrowing
from ziplm.architectures.base import Architecture, Branch, Size, out_in, part_names
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.zip_declaration import BranchSpec, Rows
from ziplm.architectures.zip_layers import Constant, groups_of, resize
from ziplm.errors import UsageError

Groups = torch.Tensor | slice
"""Groups to keep: their indices, or a leading slice, which allows views."""


def pruned_parts(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: BranchTrace, size: Size
) -> dict[str, nn.Module]:
    """Build the parts of a branch reduced to a size, for `Architecture.install`.

    The output matrix and its bias come from the trace. The rows of the other matrices that belong to the
    remaining groups are copied, or projected to narrower heads. Everything else (norms, settings) is shared
    with the model, which is not changed.
    """
    layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)
    weight, bias = pruned_output(architecture, model, branch, trace, size)
    removed = branch.groups - size.groups
    if (narrow := narrowing(branch, trace, size)) is not None:
        state = _narrow_state(layer, spec, narrow, removed, size.width, weight, bias)
    else:
        state = _state(layer, spec, heads_of(trace).kept(removed).to(model.device), weight, bias)
    hidden = model.config.hidden_size
    return _parts_around(layer, spec.at_width(size.width), size.groups, state, hidden)


def pruned_output(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, trace: BranchTrace, size: Size
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output matrix (hidden, columns left) and its bias (hidden,) of a branch reduced to a size.

    An output matrix without a bias gets none: its trace must not be centred.

    Raises:
        UsageError: if the trace does not fit, or moves the mean output into a bias that does not exist.
    """
    removed = branch.groups - size.groups
    if (narrow := narrowing(branch, trace, size)) is not None:
        weight = narrow.values.weight(removed, size.width)
        shift = narrow.values.bias_shift(removed, size.width)
    else:
        weight, shift = heads_of(trace).weight(removed), heads_of(trace).bias_shift(removed)
    weight, bias = weight.to(architecture.weight(model, branch)), architecture.bias(model, branch)
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
    state = _output_state(layer, spec, weight, bias)
    if not weight.shape[1]:
        return state
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
    return state | _kept_numbers(layer, spec, groups)


def _narrow_state(
    layer: nn.Module,
    spec: BranchSpec,
    trace: AttentionTrace,
    removed: int,
    width: int,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Return the parameters of an attention with narrower heads; see `_state`."""
    state = _output_state(layer, spec, weight, bias)
    for rows in spec.rows:
        linear = layer.get_submodule(rows.path)
        made = trace.project(out_in(linear).detach(), rows, removed, width, spec.scaled).to(weight.device)
        state[f"{rows.path}.weight"] = made if isinstance(linear, nn.Linear) else made.mT.contiguous()
        if isinstance(linear.bias, torch.Tensor):
            bias_rows = trace.project(linear.bias.detach(), rows, removed, width, spec.scaled)
            state[f"{rows.path}.bias"] = bias_rows.to(weight.device)
    return state | _kept_numbers(layer, spec, trace.values.kept(removed, width).to(weight.device))


def _output_state(
    layer: nn.Module, spec: BranchSpec, weight: torch.Tensor, bias: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return the output matrix and its bias by their paths; a matrix without columns is left out."""
    state = {} if bias is None else {f"{spec.output}.bias": bias}
    if weight.shape[1]:
        output = layer.get_submodule(spec.output)
        state[f"{spec.output}.weight"] = weight if isinstance(output, nn.Linear) else weight.mT.contiguous()
    return state


def _kept_numbers(layer: nn.Module, spec: BranchSpec, groups: Groups) -> dict[str, torch.Tensor]:
    """Return the numbers that the kept groups have in the dense model, for bodies that need them."""
    if spec.kept is None:
        return {}
    owner, _, name = spec.kept.rpartition(".")
    output = out_in(layer.get_submodule(spec.output))
    numbers = getattr(
        layer.get_submodule(owner), name, torch.arange(groups_of(layer, spec), device=output.device)
    )
    return {spec.kept: numbers[groups]}


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

"""Shrink: make branches smaller physically (`shrink`), or by zeros (`mask`).

Heads, FFN columns and whole branches are removed, and heads are made narrower.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import BranchTrace, heads_of, narrowing
from ziplm.architectures.base import PARTS, Architecture, Branch, Size, out_in
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import pruned_output, pruned_parts
from ziplm.errors import UsageError


def shrink(
    model: PreTrainedModel,
    removed: Sequence[int],
    traces: Sequence[BranchTrace | None],
    head_widths: Sequence[int | None] | None = None,
) -> PreTrainedModel:
    """Return a physically smaller model.

    Args:
        model: a model of a known architecture, dense or already shrunk; it is not changed.
        removed: number of groups (heads or FFN columns) that each branch loses: attention and FFN of the
            first layer, then of the second, and so on. A branch that loses all of them is removed; only the
            bias of its output matrix stays.
        traces: for each branch the trace of its output matrix, made by `obs_structured.prune`; None where
            nothing changes. Heads become narrower by an `AttentionTrace`.
        head_widths: width of the heads that each layer keeps; None where they keep their width.

    Returns:
        A model of the corresponding class for shrunk models. Parameters that did not change (embeddings,
        norms, the head, whole branches) are shared with `model`: copy it before training one of the two.

    Raises:
        UsageError: if the arguments do not fit the model.
    """
    return shrink_to_sizes(model, _sizes(model, removed, head_widths), traces)


def mask(
    model: PreTrainedModel,
    removed: Sequence[int],
    traces: Sequence[BranchTrace | None],
    head_widths: Sequence[int | None] | None = None,
) -> PreTrainedModel:
    """Return a copy of the model that has its original size and computes the same as the shrunk one.

    The columns of the output matrices that `shrink` would remove are set to zero. Of heads that it would make
    narrower, the output matrix reads only what would be left of the values, and the queries are such that the
    scores are the same. The arguments are those of `shrink`.
    """
    return mask_to_sizes(model, _sizes(model, removed, head_widths), traces)


def shrink_to_sizes(
    model: PreTrainedModel, sizes: Sequence[Size], traces: Sequence[BranchTrace | None]
) -> PreTrainedModel:
    """Return a physically smaller model, with one size for each branch; see `shrink`."""
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    _check_sizes(architecture, model, sizes, traces)
    state = model.state_dict()
    for index, (branch, size) in enumerate(zip(branches, sizes, strict=True)):
        if size != branch.size:
            _replace_branch(state, architecture, model, branch, _trace_of(branch, traces[index]), size)
    return _assembled(architecture, model, state, sizes)


@torch.no_grad()
def mask_to_sizes(
    model: PreTrainedModel, sizes: Sequence[Size], traces: Sequence[BranchTrace | None]
) -> PreTrainedModel:
    """Return a copy that computes the same as the shrunk model, with one size for each branch; see `mask`."""
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    _check_sizes(architecture, model, sizes, traces)
    masked = copy.deepcopy(model)
    for index, (branch, size) in enumerate(zip(branches, sizes, strict=True)):
        if size != branch.size:
            _mask_branch(architecture, masked, branch, _trace_of(branch, traces[index]), size)
    return masked


def _mask_branch(
    architecture: Architecture, masked: PreTrainedModel, branch: Branch, trace: BranchTrace, size: Size
) -> None:
    """Change the parameters of a branch, in place, so that it computes the same as at a smaller size."""
    new_weight, new_bias = pruned_output(architecture, masked, branch, trace, size)
    weight, bias = architecture.weight(masked, branch), architecture.bias(masked, branch)
    removed = branch.groups - size.groups
    if (narrow := narrowing(branch, trace, size)) is not None:
        weight.copy_(narrow.masked_output(removed, size.width))
        layer, spec = architecture.layers(masked)[branch.layer], architecture.spec(masked, branch)
        for rows in spec.rows:
            linear = layer.get_submodule(rows.path)
            for tensor in (out_in(linear), linear.bias):
                if "query" in rows.roles and isinstance(tensor, torch.Tensor):
                    queries = tensor.chunk(len(rows.roles))[rows.roles.index("query")]
                    queries.copy_(narrow.masked_queries(queries, removed, size.width))
    else:
        weight.zero_()
        weight[:, heads_of(trace).columns(removed)] = new_weight
    if bias is not None and new_bias is not None:
        bias.copy_(new_bias)


def _sizes(
    model: PreTrainedModel, removed: Sequence[int], head_widths: Sequence[int | None] | None
) -> list[Size]:
    """Return the size of each branch after groups are removed and heads are made narrower."""
    branches = architecture_of(model).branches(model)
    layers = len(branches) // len(PARTS)
    widths = [None] * layers if head_widths is None else head_widths
    if len(removed) != len(branches):
        raise UsageError(
            f"there are {len(removed)} counts for {len(branches)} branches", "give one for every branch"
        )
    if len(widths) != layers:
        raise UsageError(
            f"there are {len(widths)} widths of heads for {layers} layers",
            "give one for every layer, None to keep the width",
        )
    sizes = []
    for branch, count in zip(branches, removed, strict=True):
        width = widths[branch.layer] if branch.part == "attention" and branch.groups > count else None
        sizes.append(Size(branch.groups - count, branch.group_size if width is None else width))
    return sizes


def _check_sizes(
    architecture: Architecture,
    model: PreTrainedModel,
    sizes: Sequence[Size],
    traces: Sequence[BranchTrace | None],
) -> None:
    branches = architecture.branches(model)
    if not len(branches) == len(sizes) == len(traces):
        raise UsageError(
            f"there are {len(sizes)} sizes and {len(traces)} traces for {len(branches)} branches",
            "give one of each for every branch",
        )
    for branch, size in zip(branches, sizes, strict=True):
        if not 0 <= size.groups <= branch.groups:
            raise UsageError(
                f"{branch.name} cannot lose {branch.groups - size.groups} groups",
                f"it has {branch.groups}: give 0 to {branch.groups}",
            )
        if size.width != branch.group_size and architecture.spec(model, branch).width_path is None:
            raise UsageError(f"the groups of {branch.name} keep their width", "remove groups instead")
        if not 1 <= size.width <= branch.group_size:
            raise UsageError(
                f"the groups of {branch.name} cannot be {size.width} wide",
                f"their width is {branch.group_size}: give 1 to {branch.group_size}",
            )


def _trace_of(branch: Branch, trace: BranchTrace | None) -> BranchTrace:
    if trace is None:
        raise UsageError(f"{branch.name} has no trace", "prune its matrix, or remove nothing from it")
    return trace


def _replace_branch(
    state: dict[str, torch.Tensor],
    architecture: Architecture,
    model: PreTrainedModel,
    branch: Branch,
    trace: BranchTrace,
    size: Size,
) -> None:
    """Replace the parameters of a branch in a state dict by those of a smaller one."""
    layer = architecture.layers(model)[branch.layer]
    prefix = next(name for name, candidate in model.named_modules() if candidate is layer)
    new = pruned_parts(architecture, model, branch, trace, size)
    for name in architecture.parts(model, branch):
        for key in [key for key in state if key.startswith(f"{prefix}.{name}.")]:
            del state[key]
        state.update({f"{prefix}.{name}.{key}": value for key, value in new[name].state_dict().items()})


def _assembled(
    architecture: Architecture,
    model: PreTrainedModel,
    state: dict[str, torch.Tensor],
    sizes: Sequence[Size],
) -> PreTrainedModel:
    """Build a model of the shrunk class around existing tensors."""
    shrunk_class = architecture.shrunk_class(model)
    settings = model.config.to_dict()
    for name in ("model_type", "architectures", "transformers_version", "auto_map"):
        settings.pop(name, None)
    config_class: Any = shrunk_class.config_class
    attention, ffn = sizes[0::2], sizes[1::2]
    settings["zip_heads"] = [size.groups for size in attention]
    settings["zip_widths"] = [size.groups for size in ffn]
    if architecture.specs(model, 0)[0].width_path is not None:
        dense_width = architecture.dense_size(model, "attention").width
        settings["zip_head_widths"] = [size.width if size.groups else dense_width for size in attention]
    config = config_class(**settings)
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

"""Costs of levels besides time: parameters, floating point operations and bytes."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture
from ziplm.architectures.surgery import leading_parts
from ziplm.options.setting import Setting
from ziplm.stages.levels import BranchLevels


def branch_costs(
    architecture: Architecture, model: PreTrainedModel, levels: Sequence[BranchLevels], setting: Setting
) -> dict[str, list[list[float]]]:
    """Return the parameters, FLOPs of a forward pass and bytes of each level of each branch.

    The parameters of a branch are those it has even when removed (biases, norms), plus a fixed number for
    each group.
    """
    costs: dict[str, list[list[float]]] = {"params": [], "flops": [], "bytes": []}
    tokens, length = setting.batch_size * setting.sequence_length, setting.sequence_length
    item = torch.empty(0, dtype=getattr(torch, setting.dtype)).element_size()
    for own in levels:
        branch = own.branch
        full = _parameters(architecture.parts(model, branch))
        empty = full
        if branch.groups:
            layer = architecture.layers(model)[branch.layer]
            empty = _parameters(leading_parts(architecture, layer, branch, 0))
        share = [size / branch.groups if branch.groups else 0.0 for size in own.sizes]
        params = [empty + (full - empty) * part for part in share]
        # One multiplication and one addition per parameter and token, and attention between tokens.
        between = 4 * tokens * length * branch.group_size if branch.kind == "attention" else 0
        costs["params"].append(params)
        costs["bytes"].append([item * count for count in params])
        costs["flops"].append(
            [
                2 * tokens * (count - empty) + between * size
                for count, size in zip(params, own.sizes, strict=True)
            ]
        )
    return costs


def _parameters(parts: dict[str, nn.Module]) -> int:
    return sum(parameter.numel() for part in parts.values() for parameter in part.parameters())

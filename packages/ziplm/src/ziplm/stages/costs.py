"""Costs of levels besides time: parameters, floating point operations and bytes."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.surgery import leading_parts
from ziplm.options.setting import Setting
from ziplm.stages.levels import BranchLevels


def branch_costs(
    architecture: Architecture, model: PreTrainedModel, levels: Sequence[BranchLevels], setting: Setting
) -> dict[str, list[list[float]]]:
    """Return the parameters, FLOPs and bytes of each level of each branch.

    FLOPs are those of one measurement in the setting: a forward pass over a batch, the mean over inputs of
    several lengths, or a whole generation.
    """
    costs: dict[str, list[list[float]]] = {"params": [], "flops": [], "bytes": []}
    tokens, pairs = _processed(setting)
    item = torch.empty(0, dtype=getattr(torch, setting.dtype)).element_size()
    for branch_levels in levels:
        branch, sizes = branch_levels.branch, branch_levels.sizes
        empty, one, each = _counts(architecture, model, branch)
        # Groups of the present width that have as many parameters; heads may be narrower.
        groups = [size.groups * size.width / branch.group_size for size in sizes]
        params = [float(one + each * (count - 1) if count else empty) for count in groups]
        # One multiplication and one addition per parameter and token, and attention between tokens.
        between = 4 * pairs * branch.group_size if branch.part == "attention" else 0
        costs["params"].append(params)
        costs["bytes"].append([item * count for count in params])
        costs["flops"].append([float((2 * tokens * each + between) * count) for count in groups])
    return costs


def _processed(setting: Setting) -> tuple[float, float]:
    """Return the tokens that a branch processes in one measurement, and the pairs of tokens that attend."""
    tokens = pairs = 0.0
    for length, share in setting.shares.items():
        tokens += share * length
        pairs += share * length**2
        if setting.regime == "generate":  # one token at a time, and no branch processes the last one
            steps = setting.new_tokens - 1
            tokens += share * steps
            pairs += share * sum(length + made + 1 for made in range(steps))
    return setting.batch_size * tokens, setting.batch_size * pairs


def _counts(architecture: Architecture, model: PreTrainedModel, branch: Branch) -> tuple[int, int, int]:
    """Return the parameters of a branch without groups and with one group, and those of each further group.

    The first group may count for more than the others: in pre-LN models, a norm is removed with its branch.
    """
    full = _parameters(architecture.parts(model, branch))
    if not branch.groups:
        return full, full, 0
    layer = architecture.layers(model)[branch.layer]
    empty, one = (
        _parameters(leading_parts(layer, architecture.spec(model, branch), groups)) for groups in (0, 1)
    )
    return empty, one, (full - one) // (branch.groups - 1) if branch.groups > 1 else full - empty


def _parameters(parts: dict[str, nn.Module]) -> int:
    return sum(parameter.numel() for part in parts.values() for parameter in part.parameters())

"""Branches of all sizes that a latency table needs, as modules that can be measured."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from latency_profiler import Family
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import leading_parts
from ziplm.architectures.zip_layers import resize
from ziplm.options.setting import Setting
from ziplm.stages.levels import head_widths, size_grid, width_curve
from ziplm.stages.workload import dtype_of


@dataclass(frozen=True)
class Call:
    """One call of a branch while a model is measured.

    Attributes:
        tokens: number of input tokens.
        past: number of tokens in the cache before the call; None for no cache.
    """

    tokens: int
    past: int | None = None


class MeasuredSizes(NamedTuple):
    """The sizes of branches from which one latency curve is measured.

    Attributes:
        kind: kind of the branches.
        width: width of their groups.
        groups: numbers of groups, descending.
    """

    kind: str
    width: int
    groups: list[int]


def measured_sizes(
    architecture: Architecture, model: PreTrainedModel, kind: str, round_to: int, narrow: bool
) -> dict[str, MeasuredSizes]:
    """Return the sizes at which branches of a kind are measured, by name of the curve.

    A model that was compressed before may have no branch of full size. Sizes above its largest branch do not
    occur in it, and are left out. Narrower heads are measured at the smallest width and half of the full one,
    and at a few numbers of heads; times in between are interpolated.
    """
    dense = architecture.dense_size(model, kind)
    branches = [branch for branch in architecture.branches(model) if branch.kind == kind]
    most = max(branch.groups for branch in branches)
    grid = size_grid(kind, dense.groups, round_to)
    curves = {kind: MeasuredSizes(kind, dense.width, [most, *(count for count in grid if count < most)])}
    if not narrow or architecture.spec(model, branches[0]).width_path is None or not most:
        return curves
    widths = head_widths(dense.width, round_to)[1:]
    few = sorted({math.ceil(most * quarter / 4) for quarter in range(1, 5)} | {1}, reverse=True)
    halves = [width for width in widths if 2 * width <= dense.width][:1]
    for width in dict.fromkeys([*halves, *widths[-1:]]):
        curves[width_curve(kind, width)] = MeasuredSizes(kind, width, few)
    return curves


def sized_branches(
    model: PreTrainedModel, setting: Setting, sizes: MeasuredSizes, calls: list[Call]
) -> dict[Call, Family]:
    """Return, for each call, a branch at the sizes of a curve.

    It is made from the first of the largest branches of the kind. Sizes that this branch does not contain,
    such as narrower heads, have random weights.
    """
    architecture = architecture_of(model)
    branches = [branch for branch in architecture.branches(model) if branch.kind == sizes.kind]
    branch = max(branches, key=lambda branch: branch.groups)
    layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)

    @functools.cache  # all calls share the weights of a size
    def resized(groups: int) -> nn.Module:
        made = structure_copy(layer)
        if sizes.width == branch.group_size:
            for name, part in leading_parts(layer, spec, groups).items():
                setattr(made, name, part)
        else:
            with torch.random.fork_rng(devices=[]):
                resize(made, spec.at_width(sizes.width), groups, model.config.hidden_size)
            made.to(device=setting.device, dtype=dtype_of(setting))
        return made.eval()

    def hidden(tokens: int) -> torch.Tensor:
        shape = (setting.batch_size, tokens, model.config.hidden_size)
        random = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return random.to(device=setting.device, dtype=dtype_of(setting))

    def sized(call: Call) -> Family:
        past = None if call.past is None else hidden(call.past)
        inputs = hidden(call.tokens)
        return Family(
            lambda groups: architecture.branch_module(model, branch, resized(groups), past),
            sizes.groups,
            (inputs, architecture.attention_mask(model, branch, inputs, call.past or 0)),
        )

    return {call: sized(call) for call in calls}

"""Levels of a module: its current size first, then the grid's smaller ones, then nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from latency_profiler import LatencyTable
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import KINDS, Adapter, Kind, Module
from ziplm.benchmarking import Setting

STEP, STEPS = 0.9, 43  # the paper's: each width a tenth below the last, down to about one percent


def size_grid(kind: Kind, dense_groups: int, round_to: int = 1) -> list[int]:
    """Sizes that modules of a kind may have, falling, the dense one first and 0 last.

    Attention may keep any number of heads; a feed-forward part the paper's widths, 0.9^i of the dense one,
    down to multiples of `round_to`.
    """
    if kind == "attention":
        return list(range(dense_groups, -1, -1))
    # As the paper rounds: the share removed to four digits, the width down.
    widths = {int(dense_groups * (1 - round(1 - STEP**i, 4))) for i in range(STEPS + 1)}
    widths = {width // round_to * round_to for width in widths}
    return sorted(widths | {dense_groups, 0}, reverse=True)


@dataclass(frozen=True)
class ModuleLevels:
    """What one module may become.

    Attributes:
        module: as it is now.
        sizes: groups left at each level, falling, the current number first.
    """

    module: Module
    sizes: tuple[int, ...]

    def removed(self, level: int) -> int:
        """Groups removed at a level."""
        return self.module.groups - self.sizes[level]

    def seconds(self, table: LatencyTable) -> list[float]:
        """What each level costs; not monotone by force: a table is."""
        return [table.curves[self.module.kind](size) for size in self.sizes]


def module_levels(adapter: Adapter, model: PreTrainedModel, round_to: int = 1) -> list[ModuleLevels]:
    """The levels of all modules; one that was removed before has one."""
    grids = {kind: size_grid(kind, adapter.dense_groups(model, kind), round_to) for kind in KINDS}
    return [
        ModuleLevels(m, (m.groups, *(size for size in grids[m.kind] if size < m.groups)))
        for m in adapter.modules(model)
    ]


def module_costs(
    adapter: Adapter, model: PreTrainedModel, levels: Sequence[ModuleLevels], setting: Setting
) -> dict[str, list[list[float]]]:
    """What each level of each module costs besides time: parameters, FLOPs of a forward pass, bytes.

    A module's parameters are those that it has when removed (biases, norms), and so many for each group.
    """
    costs: dict[str, list[list[float]]] = {"params": [], "flops": [], "bytes": []}
    tokens, length = setting.batch_size * setting.sequence_length, setting.sequence_length
    item = torch.empty(0, dtype=setting.dtype).element_size()
    for own in levels:
        module = own.module
        full = _parameters(adapter.parts(model, module))
        empty = full
        if module.groups:
            layer = adapter.layers(model)[module.layer]
            empty = _parameters(adapter.leading(layer, module, 0))
        share = [size / module.groups if module.groups else 0.0 for size in own.sizes]
        params = [empty + (full - empty) * part for part in share]
        # A multiplication and an addition for each parameter and token; scores and mixing between tokens.
        between = 4 * tokens * length * module.group_size if module.kind == "attention" else 0
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

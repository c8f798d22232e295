"""Levels of a module: its current size first, then the grid's smaller ones, then nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from latency_profiler import LatencyTable

from ziplm.adapters import Adapter, Kind, Module

STEP, STEPS = 0.9, 43  # the paper's: each width a tenth below the last, down to about one percent


def size_grid(kind: Kind, dense_groups: int) -> list[int]:
    """Sizes that modules of a kind may have, falling, the dense one first and 0 last.

    Attention may keep any number of heads; a feed-forward part the paper's widths, 0.9^i of the dense one.
    """
    if kind == "attention":
        return list(range(dense_groups, -1, -1))
    # As the paper rounds: the share removed to four digits, the width down.
    widths = {int(dense_groups * (1 - round(1 - STEP**i, 4))) for i in range(STEPS + 1)}
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


def module_levels(adapter: Adapter, modules: Sequence[Module], model: object) -> list[ModuleLevels]:
    """The levels of all modules; one that was removed before has one."""
    return [
        ModuleLevels(
            module,
            (
                module.groups,
                *(
                    size
                    for size in size_grid(module.kind, adapter.dense_groups(model, module.kind))  # type: ignore[arg-type]
                    if size < module.groups
                ),
            ),
        )
        for module in modules
    ]

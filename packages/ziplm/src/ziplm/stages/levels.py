"""The levels of a branch: its current size first, then the smaller sizes of the grid, then 0."""

from dataclasses import dataclass

from latency_profiler import LatencyTable
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch, Size

STEP, STEPS = 0.9, 43  # the paper's grid: each width is a tenth below the last, down to about one percent


def size_grid(kind: str, dense_groups: int, round_to: int = 1) -> list[int]:
    """Return the sizes that branches of a kind may have, descending from the dense size to 0.

    Attention may keep any number of heads. An FFN may have the paper's widths, 0.9^i of the dense width,
    rounded down to multiples of `round_to`.
    """
    if kind.startswith("attention"):
        return list(range(dense_groups, -1, -1))
    # The paper rounds the removed share to four digits, and the width down.
    widths = {int(dense_groups * (1 - round(1 - STEP**i, 4))) for i in range(STEPS + 1)}
    widths = {width // round_to * round_to for width in widths}
    return sorted(widths | {dense_groups, 0}, reverse=True)


@dataclass(frozen=True)
class BranchLevels:
    """The sizes that one branch may get.

    Attributes:
        branch: the branch of the current model.
        sizes: the size at each level, descending from the current one.
    """

    branch: Branch
    sizes: tuple[Size, ...]

    def seconds(self, table: LatencyTable) -> list[float]:
        """Return the time of each level according to the latency table."""
        return [table.curves[self.branch.kind](size.groups) for size in self.sizes]


def branch_levels(
    architecture: Architecture, model: PreTrainedModel, round_to: int = 1
) -> list[BranchLevels]:
    """Return the levels of all branches; a branch that was removed earlier has a single one."""
    grids = {
        kind: size_grid(kind, architecture.dense_groups(model, kind), round_to)
        for kind in architecture.kinds(model)
    }
    levels = []
    for branch in architecture.branches(model):
        groups = (branch.groups, *(count for count in grids[branch.kind] if count < branch.groups))
        levels.append(BranchLevels(branch, tuple(Size(count, branch.group_size) for count in groups)))
    return levels

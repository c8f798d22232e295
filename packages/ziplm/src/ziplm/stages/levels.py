"""The levels of a branch: its current size first, then smaller sizes, and last its removal.

An attention without rotary embeddings may have fewer heads and narrower ones. Of all combinations, only those
are levels that some prior prefers to every other one that takes no more time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from latency_profiler import LatencyCurve, LatencyTable
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch, Size

STEP, STEPS = 0.9, 43  # the paper's grid: each width is a tenth below the last, down to about one percent
HEAD_STEP, NARROWEST_HEAD = (
    8,
    16,
)  # narrower heads, and others than multiples of 8, take as long as wider ones


def size_grid(kind: str, dense_groups: int, round_to: int = 1) -> list[int]:
    """Return the numbers of groups that branches of a kind may have, descending from the dense one to 0.

    Attention may keep any number of heads. An FFN may have the paper's widths, 0.9^i of the dense width,
    rounded down to multiples of `round_to`.
    """
    if kind.startswith("attention"):
        return list(range(dense_groups, -1, -1))
    # The paper rounds the removed share to four digits, and the width down.
    widths = {int(dense_groups * (1 - round(1 - STEP**i, 4))) for i in range(STEPS + 1)}
    widths = {width // round_to * round_to for width in widths}
    return sorted(widths | {dense_groups, 0}, reverse=True)


def head_widths(width: int, round_to: int = 1) -> list[int]:
    """Return the widths that heads of a width may get, descending from their own.

    They are multiples of 8 and of `round_to`, from 16 up.
    """
    step = math.lcm(HEAD_STEP, round_to)
    return [width, *range((width - 1) // step * step, NARROWEST_HEAD - 1, -step)]


def width_curve(kind: str, width: int) -> str:
    """Return the name of the latency curve of attentions of a kind with heads of a smaller width."""
    return f"{kind}@{width}"


def width_curves(table: LatencyTable, kind: str) -> dict[int, LatencyCurve]:
    """Return the latency curves of attentions with narrower heads, by width."""
    start = width_curve(kind, 0)[:-1]
    found = {
        name.removeprefix(start): curve for name, curve in table.curves.items() if name.startswith(start)
    }
    return {int(width): curve for width, curve in found.items() if width.isdecimal()}


def seconds_of(table: LatencyTable, kind: str, size: Size, dense_width: int) -> float:
    """Return the time of a branch of some size, interpolated between the widths that were measured.

    Below the smallest measured width, and in a table without narrower heads, a head counts by its share of
    the width.
    """
    if not size.groups or size.width == dense_width:
        return table.curves[kind](size.groups)
    by_width = {dense_width: table.curves[kind](size.groups)}
    by_width |= {width: curve(size.groups) for width, curve in width_curves(table, kind).items()}
    wider = min(width for width in by_width if width >= size.width)
    narrower = max((width for width in by_width if width <= size.width), default=None)
    if narrower is None:
        return table.curves[kind](size.groups * size.width / dense_width)
    if narrower == wider:
        return by_width[wider]
    share = (size.width - narrower) / (wider - narrower)
    return share * by_width[wider] + (1 - share) * by_width[narrower]


@dataclass(frozen=True)
class BranchLevels:
    """The sizes that one branch may get.

    Attributes:
        branch: the branch of the current model.
        sizes: the size at each level, from the current one to the removal of the branch.
        dense_width: width of its groups in the dense model; 0 if it is that of the branch.
        widths: widths for which there are priors, the current one first; () if there is only the current one.
    """

    branch: Branch
    sizes: tuple[Size, ...]
    dense_width: int = 0
    widths: tuple[int, ...] = ()

    def seconds(self, table: LatencyTable) -> list[float]:
        """Return the time of each level according to the latency table."""
        return [self.seconds_of(table, size) for size in self.sizes]

    def seconds_of(self, table: LatencyTable, size: Size) -> float:
        """Return the time of a branch in this place with some size."""
        return seconds_of(table, self.branch.kind, size, self.dense_width or self.branch.group_size)

    def harm(self, prior: torch.Tensor, size: Size) -> float:
        """Return the prior of a size, from the prior of all sizes: (groups + 1,), or a row for each width."""
        removed = self.branch.groups - size.groups
        if prior.ndim == 1:
            return float(prior[removed])
        return float(prior[self.widths.index(size.width), removed])

    @property
    def may_narrow(self) -> bool:
        """Whether heads are, or may become, narrower than in the dense model."""
        return any(size.width != (self.dense_width or size.width) for size in self.sizes if size.groups)


def branch_levels(
    architecture: Architecture,
    model: PreTrainedModel,
    round_to: int = 1,
    widths: Mapping[str, Sequence[int]] | None = None,
    table: LatencyTable | None = None,
) -> list[BranchLevels]:
    """Return the levels of all branches; a branch that was removed earlier has a single one.

    Args:
        architecture: the model's architecture.
        model: the current model.
        round_to: FFN widths are multiples of this number.
        widths: widths that the heads of attentions may get, the current one first, by branch name.
        table: latency table, in which narrower heads must have been measured.
    """
    grids = {
        kind: size_grid(kind, architecture.dense_groups(model, kind), round_to)
        for kind in architecture.kinds(model)
    }
    levels = []
    for branch in architecture.branches(model):
        groups = (branch.groups, *(count for count in grids[branch.kind] if count < branch.groups))
        known = tuple((widths or {}).get(branch.name, (branch.group_size,)))
        measured = [] if table is None else width_curves(table, branch.kind)
        used = [known[0], *(width for width in known[1:] if width >= min(measured, default=math.inf))]
        sizes = [Size(count, width) for width in used for count in groups if count]
        dense_width = architecture.dense_size(model, branch.kind).width
        levels.append(BranchLevels(branch, (*sizes, Size(0, branch.group_size)), dense_width, known))
    return levels


def best_levels(levels: BranchLevels, table: LatencyTable, priors: Sequence[torch.Tensor]) -> BranchLevels:
    """Return the levels of an attention that are best for some time by one of its priors, by falling time."""
    seconds = dict(zip(levels.sizes, levels.seconds(table), strict=True))
    current, removed = levels.sizes[0], levels.sizes[-1]
    best = {removed}
    for prior in priors:
        lowest = math.inf
        for size in sorted(seconds, key=lambda size: (seconds[size], levels.harm(prior, size))):
            if levels.harm(prior, size) < lowest:
                lowest = levels.harm(prior, size)
                best.add(size)
    between = sorted(best - {current, removed}, key=lambda size: seconds[size], reverse=True)
    return replace(levels, sizes=(current, *between, removed))

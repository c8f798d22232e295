"""The trace of an attention whose heads can be made narrower, besides being removed.

The closed forms are those of obs-structured: `WidthTrace` narrows the values of all heads and the output
matrix that reads them, `ScoreTrace` the queries and keys. At their present width, heads are removed by an
ordinary `Trace`, so that whatever stays is not changed more than necessary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from obs_structured import ScoreTrace, Trace, WidthTrace

from ziplm.architectures.base import Branch, Size
from ziplm.architectures.zip_declaration import Rows
from ziplm.errors import UsageError


@dataclass(frozen=True)
class AttentionTrace:
    """Everything about making one attention smaller.

    Attributes:
        heads: trace of removing heads at their present width.
        values: all widths of the values, and all numbers of heads at each.
        scores: all widths of the queries and keys.
    """

    heads: Trace
    values: WidthTrace
    scores: ScoreTrace

    def project(
        self, matrix: torch.Tensor, rows: Rows, removed: int, width: int, scaled: bool
    ) -> torch.Tensor:
        """Return the rows that queries, keys and values have when heads are removed and the others narrower.

        Args:
            matrix: a matrix whose rows belong to the heads, or its bias.
            rows: which parts of it are queries, keys and values.
            removed: number of heads removed.
            width: width of the heads that are left.
            scaled: whether the attention divides scores by the root of the width.
        """
        kept = self.values.kept(removed, width).cpu()
        made = []
        for role, block in zip(rows.roles, matrix.chunk(len(rows.roles)), strict=True):
            if role == "query":
                made.append(self.scores.project_queries(block, width, kept, scaled=scaled))
            elif role == "key":
                made.append(self.scores.project_keys(block, width, kept))
            else:
                made.append(self.values.project(block, removed, width))
        return torch.cat(made)

    def orders(self, widths: Sequence[int]) -> torch.Tensor:
        """Return the heads in the order in which they are removed at each width, int64 (widths, heads).

        The first width is the present one.
        """
        orders = [self.heads.order, *(self.values.order(width) for width in widths[1:])]
        return torch.stack([order.cpu() for order in orders])

    def masked_output(self, removed: int, width: int) -> torch.Tensor:
        """Return an output matrix of the present size that reads only what narrower heads would have."""
        kept, basis = self.values.kept(removed, width), self.values.basis(width)  # (heads, d, r)
        narrow = self.values.weight(removed, width)  # (hidden, kept * r)
        wide = narrow.new_zeros(len(narrow), self.values.heads, self.values.head_size)
        for number, head in enumerate(kept.tolist()):
            block = narrow[:, number * width : (number + 1) * width]
            wide[:, head] = block @ basis[head].to(block).mT
        return wide.flatten(1)

    def masked_queries(self, rows: torch.Tensor, removed: int, width: int) -> torch.Tensor:
        """Return rows of queries of the present size, or their bias, with the scores of narrower heads.

        With P_q and P_k the projections of queries and keys, (P_kᵀ P_q q)ᵀ k = (P_q q)ᵀ (P_k k). Those of
        removed heads stay as they are.
        """
        heads, size = self.scores.heads, self.scores.head_size
        identities = torch.eye(size, dtype=torch.float64).repeat(heads, 1)
        to_queries = self.scores.project_queries(identities, width, scaled=False).view(heads, width, size)
        to_keys = self.scores.project_keys(identities, width).view(heads, width, size)
        kept = self.values.kept(removed, width).cpu()
        blocks = rows.double().cpu().view(heads, size, -1)
        blocks[kept] = (to_keys.mT @ to_queries @ blocks)[kept]
        return blocks.view(rows.shape).to(rows)


BranchTrace = Trace | AttentionTrace
"""The trace of a branch: of removing its groups, or for some attentions also of narrower heads."""


def heads_of(trace: BranchTrace) -> Trace:
    """Return the trace of removing groups at their present width."""
    return trace.heads if isinstance(trace, AttentionTrace) else trace


def narrowing(branch: Branch, trace: BranchTrace, size: Size) -> AttentionTrace | None:
    """Return the trace if a size has narrower heads than the branch has now; None if only groups are removed.

    Raises:
        UsageError: if the size or the trace does not fit the branch.
    """
    groups = heads_of(trace)
    if (groups.groups, groups.group_size) != branch.size:
        raise UsageError(
            f"the trace has {groups.groups} groups of {groups.group_size}, but {branch.name} has "
            f"{branch.groups} of {branch.group_size}",
            "prune this model's own matrices",
        )
    if not size.groups or size.width == branch.group_size:
        return None
    if not isinstance(trace, AttentionTrace):
        raise UsageError(
            f"the trace of {branch.name} is only for groups of {branch.group_size} columns",
            "give an AttentionTrace to make heads narrower",
        )
    return trace

"""Prune: one trace for each branch, which holds the best weights of every size."""

import torch
from obs_structured import Trace, narrow_heads, narrow_scores, prune
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import AttentionTrace
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.fisher import Fisher
from ziplm.stages.statistics import BranchStatistics


def prune_branch(
    model: PreTrainedModel,
    branch: Branch,
    statistics: BranchStatistics,
    fisher: Fisher | None,
    effective_tokens: int,
    *,
    centred: bool = True,
    method: str = "obs",
    update: bool = True,
    damping: float | None = None,
) -> Trace:
    """Prune the output matrix of one branch, group by group.

    Args:
        model: the current model, which is not changed.
        branch: the branch to prune.
        statistics: its statistics, from `gather_statistics`.
        fisher: from `gather_fisher`; without it, all output directions count equally.
        effective_tokens: number of tokens that the weighted moments amount to, for the damping.
        centred: whether the bias, if there is one, takes over the mean output of what is removed.
        method: how groups are chosen, as for `obs_structured.prune`.
        update: whether the weights that stay are corrected.
        damping: relative damping; None to choose it by the number of tokens.
    """
    architecture = architecture_of(model)
    weight, bias = architecture.weight(model, branch), architecture.bias(model, branch)
    moments = statistics.moments
    device: torch.device = moments.mean.device
    return prune(
        weight.to(device),
        moments.hessian,
        branch.group_size,
        mean=moments.mean if centred and bias is not None else None,
        metric=None if fisher is None else fisher.selection_matrix(branch.name).to(device),
        damping=damping,
        count=effective_tokens,
        method=method,
        update=update,
    )


def narrow_attention(
    model: PreTrainedModel,
    branch: Branch,
    statistics: BranchStatistics,
    fisher: Fisher,
    effective_tokens: int,
    heads: Trace,
    *,
    centred: bool = True,
) -> AttentionTrace:
    """Make the heads of an attention narrower, in all widths; `heads` is the trace of removing whole ones.

    The other arguments are those of `prune_branch`.
    """
    architecture = architecture_of(model)
    weight, bias = architecture.weight(model, branch), architecture.bias(model, branch)
    moments = statistics.moments
    device: torch.device = moments.mean.device
    values = narrow_heads(
        weight.to(device),
        moments.hessian,
        branch.group_size,
        mean=moments.mean if centred and bias is not None else None,
        metric=fisher.selection_matrix(branch.name).to(device),
        count=effective_tokens,
    )
    return AttentionTrace(heads, values, narrow_scores(*fisher.scores[branch.name]))


def in_chunks(branches: list[Branch], limit: int) -> list[list[Branch]]:
    """Divide branches into chunks whose Hessians and working copies fit in `limit` bytes.

    A branch that does not fit gets a chunk of its own.
    """
    hessians = [8 * branch.columns**2 for branch in branches]  # bytes
    copies = 4 * max(hessians, default=0)  # one branch at a time is pruned
    chunks: list[list[Branch]] = []
    room = 0
    for branch, needed in zip(branches, hessians, strict=True):
        if not chunks or needed > room:
            chunks.append([])
            room = limit - copies
        chunks[-1].append(branch)
        room -= needed
    return chunks

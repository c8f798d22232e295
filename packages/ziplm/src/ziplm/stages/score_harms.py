"""The harm of the scores of narrower heads, which is added to the priors.

For each head that is kept, it is E[(Σ_t q_t·ΔB a_t)²] / tokens of a sample, with the gradients a_t at the
queries: an increase of the loss, as in the factored prior. Priors in other units get it in proportion to
what the removal of all heads counts in both. It is computed on samples that the Hessians have not seen, and
adds up the errors of a sample's tokens. With narrower heads in a single layer of a model of sentence pairs,
the divergence was 0.3 to 0.9 times E[(Σ_t q_t·ΔB a_t)²], but 2 to 2000 times the factored form,
tr(S_q ΔB Γ_q ΔBᵀ), where S_q and Γ_q are the second moments of q and a.
"""

from collections.abc import Mapping, Sequence

import torch
from obs_structured import ScoreTrace
from transformers import PreTrainedModel

from ziplm.architectures.base import Branch
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.choices import Priors
from ziplm.stages.gradients import batch_gradients
from ziplm.tasks.base import Features, Progress, Task


def score_harms(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    traces: Mapping[Branch, ScoreTrace],
    widths: Mapping[str, Sequence[int]],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> dict[str, torch.Tensor]:
    """Compute the harm of each head's narrower scores, (widths, heads) by branch name, in one backward pass.

    The samples must not be those that the traces were made from. The harm at the present width, which comes
    first in `widths`, is 0.
    """
    branches = list(traces)
    harms: list[dict[str, torch.Tensor]] = []  # of each batch
    for batch, _, _, at_scores in batch_gradients(
        model, task, features, branches, batch_size, seed, progress, workers, branches
    ):
        mask = batch["attention_mask"][..., None, None]
        harms.append({})
        for branch, trace in traces.items():
            scores = at_scores[branch.name]
            changes = [torch.zeros(len(mask), branch.groups)]
            for width in widths[branch.name][1:]:
                change = trace.first_order(scores.queries * mask, scores.at_queries, width)
                changes.append(change.cpu())  # (batch, heads)
            harms[-1][branch.name] = torch.stack(changes).double().square().sum(1)
    harms = workers.gathered(harms)
    tokens = sum(len(sample["input_ids"]) for sample in features)
    return {
        branch.name: torch.stack([harm[branch.name] for harm in harms]).sum(0) / tokens for branch in branches
    }


def add_scores(priors: Priors, orders: torch.Tensor, harms: torch.Tensor) -> None:
    """Add the harm of the scores of kept heads to the priors of an attention.

    Args:
        priors: the priors of `branch_priors`, which are changed.
        orders: the heads in the order in which they are removed at each width, from `AttentionTrace.orders`.
        harms: the attention's harms from `score_harms`, (widths, heads).
    """
    scores = torch.zeros_like(priors["factored"])
    for row, order in enumerate(orders):
        for removed in range(len(order) + 1) if row else ():
            scores[row, removed] = harms[row, order[removed:].sort().values].sum()
    whole = float(priors["factored"][0, -1])  # all heads removed
    for name, prior in priors.items():
        if name == "own":  # a root
            unit = float(prior[0, -1]) ** 2 / whole if whole else 0.0
            priors[name] = (prior.square() + unit * scores).sqrt()
        else:
            unit = 1.0 if name in ("factored", "scalar") else float(prior[0, -1]) / whole if whole else 0.0
            priors[name] = prior + unit * scores

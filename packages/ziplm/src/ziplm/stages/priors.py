"""Priors: the estimated harm of every size of every branch.

A prior is a vector with one entry for each number of groups removed; for heads that may become narrower, it
is a matrix with such a row for each width. By name:

- ``factored``: tr(Γ ΔW (H/2) ΔWᵀ), the increase of the loss to second order if tokens are independent;
- ``scalar``: the mean diagonal of Γ times the plain error; less accurate in detail, but less noisy;
- ``stream``: the error relative to the residual stream it is added to, as the next norm sees it; needs no
  gradients;
- ``exact``: E[(Σ_t g_t·ΔW (x_t − μ))²], the increase of the loss to second order with the errors of a
  sample's tokens added up, for outputs that pool many tokens;
- ``own``: the square root of the error relative to the branch's own output, as in the ZipLM paper.

Narrower heads also change the scores, which `ziplm.stages.score_harms` adds.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import AttentionTrace, BranchTrace, heads_of
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.choices import Priors
from ziplm.stages.fisher import Fisher
from ziplm.stages.gradients import AtScores, batch_gradients
from ziplm.stages.statistics import BranchStatistics
from ziplm.tasks.base import Features, Progress, Task

WHOLE_HEADS = "whole heads"
"""Name of the prior whose solution has no narrower heads."""


def branch_priors(
    model: PreTrainedModel,
    branch: Branch,
    statistics: BranchStatistics,
    fisher: Fisher | None,
    trace: BranchTrace,
    widths: Sequence[int] = (),
) -> Priors:
    """Compute all priors of a branch except the exact one; without a fisher, only own and stream.

    Those of narrower heads leave out the harm of their scores; see `ziplm.stages.score_harms`.

    Args:
        model: the current model.
        branch: the branch.
        statistics: its statistics.
        fisher: the fisher; None without gradients.
        trace: the trace of the branch.
        widths: widths that its heads may get, the present one first; one or none if they keep their width.
    """
    heads = heads_of(trace)
    own = _error_priors(model, branch, statistics, fisher, heads.errors, heads.errors_under)
    if isinstance(trace, AttentionTrace) and len(widths) > 1:
        rows = [
            own,
            *(_narrow_priors(model, branch, statistics, fisher, trace, width) for width in widths[1:]),
        ]
        own = {name: torch.stack([row[name] for row in rows]) for name in own}
    return {**own, "own": own["own"].sqrt()}


def _error_priors(
    model: PreTrainedModel,
    branch: Branch,
    statistics: BranchStatistics,
    fisher: Fisher | None,
    errors: torch.Tensor,
    errors_under: Callable[[torch.Tensor], torch.Tensor],
) -> Priors:
    """Return the priors that follow from errors of the output, by groups removed; own is not a root yet."""
    form, share = _stream_form(model, branch, statistics)
    priors = {"own": errors, "stream": share * errors_under(form)}
    if fisher is not None:
        gamma = fisher.gamma[branch.name]
        priors["factored"] = errors_under(gamma)
        ones = torch.ones(model.config.hidden_size, dtype=torch.float64)
        priors["scalar"] = gamma.diagonal().mean() * errors_under(ones)
    return {name: prior.cpu() for name, prior in priors.items()}


def _narrow_priors(
    model: PreTrainedModel,
    branch: Branch,
    statistics: BranchStatistics,
    fisher: Fisher | None,
    trace: AttentionTrace,
    width: int,
) -> Priors:
    """Return the priors of an attention with heads of a smaller width, by heads removed, without scores."""
    values = trace.values
    return _error_priors(
        model,
        branch,
        statistics,
        fisher,
        values.errors(width),
        lambda metric: values.errors_under(metric, width),
    )


def _stream_form(
    model: PreTrainedModel, branch: Branch, statistics: BranchStatistics
) -> tuple[torch.Tensor, float]:
    """Return the form and the factor of the stream prior.

    It is the error's variance as a share of the stream's, after the norm that the stream passes next.
    """
    architecture = architecture_of(model)
    norm = architecture.norm_after(model, branch)
    rows = model.config.hidden_size
    centring = torch.eye(rows, dtype=torch.float64)
    if not architecture.declaration.rms_norm:
        centring -= 1 / rows  # a LayerNorm removes the mean over outputs
    scale = torch.ones(rows, dtype=torch.float64)
    if norm is not None and isinstance(norm.weight, torch.Tensor):
        scale = norm.weight.detach().double().cpu()
    form = centring @ (scale.square()[:, None] * centring)  # the error as the norm scales it
    return form, statistics.inverse_variance / max(statistics.spread, 1e-12)


def exact_priors(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    branches: Sequence[Branch],
    traces: Mapping[str, BranchTrace],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
    widths: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, torch.Tensor]:
    """Compute the exact prior of every branch in one forward and backward pass over `features`.

    The samples must not be those that the traces were made from. `widths` are those of `branch_priors`, by
    name of the attention; the traces of these attentions stay in memory.
    """
    widths = {} if widths is None else widths
    narrowed = [branch for branch in branches if len(widths.get(branch.name, ())) > 1]
    held = {branch.name: traces[branch.name] for branch in narrowed}
    changes: list[dict[str, torch.Tensor]] = []  # of each batch, (…, groups + 1) by branch name
    for batch, inputs, gradients, scores in batch_gradients(
        model, task, features, branches, batch_size, seed, progress, workers, narrowed
    ):
        mask = batch["attention_mask"][..., None]
        changes.append({})
        for name, gradient in gradients.items():
            trace = held.get(name) or traces[name]
            x, g = inputs[name] * mask, gradient * mask
            change = heads_of(trace).first_order(x, g)  # (batch, groups + 1)
            if isinstance(trace, AttentionTrace) and name in held:
                rows = [_narrow_change(trace, x, g, scores[name], mask, w) for w in widths[name][1:]]
                change = torch.stack([change, *rows], dim=1)  # (batch, widths, groups + 1)
            changes[-1][name] = change.double().square().sum(0).cpu()
    changes = workers.gathered(changes)
    return {
        branch.name: torch.stack([change[branch.name] for change in changes]).sum(0) / len(features)
        for branch in branches
    }


def _narrow_change(
    trace: AttentionTrace,
    inputs: torch.Tensor,
    gradients: torch.Tensor,
    scores: AtScores,
    mask: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Return the first-order change of each sample's loss with narrower heads, (batch, heads + 1)."""
    change = trace.values.first_order(inputs, gradients, width)
    by_head = trace.scores.first_order(scores.queries * mask[..., None], scores.at_queries, width)
    kept = [trace.values.kept(removed, width).cpu() for removed in range(change.shape[1])]
    of_scores = torch.stack([by_head[:, heads].sum(1) for heads in kept], dim=1)
    return change + of_scores.to(change)


def prior_names_for(priors: Mapping[str, Priors]) -> list[str]:
    """Return the priors that all branches have and that are worth trying, the most reliable first."""
    common = set.intersection(*(set(known) for known in priors.values()))
    return [name for name in ("exact", "factored", "scalar", "stream", WHOLE_HEADS) if name in common]


def add_whole_heads(priors: Mapping[str, Priors]) -> None:
    """Add a prior to all branches whose solution has no narrower heads: the most reliable one otherwise.

    It says that narrower heads do as much harm as none, which take less time. With its solution among the
    candidates, samples that pruning has not seen decide whether narrower heads are better.
    """
    usual = prior_names_for(priors)[0]
    for known in priors.values():
        prior = known[usual].clone()
        if prior.ndim == 2:
            prior[1:] = prior[0, -1]
        known[WHOLE_HEADS] = prior

"""Priors: the estimated harm of every size of every branch.

A prior is a vector with one entry for each number of groups removed. By name:

- ``factored``: tr(Γ ΔW (H/2) ΔWᵀ), the increase of the loss to second order if tokens are independent;
- ``scalar``: the mean diagonal of Γ times the plain error; less accurate in detail, but less noisy;
- ``stream``: the error relative to the residual stream it is added to, as the next norm sees it; needs no
  gradients;
- ``exact``: E[(Σ_t g_t·ΔW (x_t − μ))²], the increase of the loss to second order with the errors of a
  sample's tokens added up, for outputs that pool many tokens;
- ``own``: the square root of the error relative to the branch's own output, as in the ZipLM paper.
"""

from collections.abc import Mapping, Sequence

import torch
from obs_structured import Trace
from transformers import PreTrainedModel

from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.choices import Priors
from ziplm.stages.fisher import Fisher
from ziplm.stages.gradients import batch_gradients
from ziplm.stages.statistics import BranchStatistics
from ziplm.tasks.base import Features, Progress, Task


def branch_priors(
    model: PreTrainedModel, branch: Branch, statistics: BranchStatistics, fisher: Fisher | None, trace: Trace
) -> Priors:
    """Compute all priors of a branch except the exact one; without a fisher, only own and stream."""
    ones = torch.ones(model.config.hidden_size, dtype=torch.float64)
    priors = {"own": trace.errors.sqrt(), "stream": _stream_prior(model, branch, statistics, trace)}
    if fisher is not None:
        gamma = fisher.gamma[branch.name]
        priors["factored"] = trace.errors_under(gamma)
        priors["scalar"] = gamma.diagonal().mean() * trace.errors_under(ones)
    return {name: prior.cpu() for name, prior in priors.items()}


def _stream_prior(
    model: PreTrainedModel, branch: Branch, statistics: BranchStatistics, trace: Trace
) -> torch.Tensor:
    """Return the error's variance as a share of the stream's, after the norm that the stream passes next."""
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
    return statistics.inverse_variance * trace.errors_under(form) / max(statistics.spread, 1e-12)


def exact_priors(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    branches: Sequence[Branch],
    traces: Mapping[str, Trace],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> dict[str, torch.Tensor]:
    """Compute the exact prior of every branch in one forward and backward pass over `features`.

    The samples must not be those that the traces were made from.
    """
    changes: list[dict[str, torch.Tensor]] = []  # of each batch, (groups + 1,) by branch name
    for batch, inputs, gradients in batch_gradients(
        model, task, features, branches, batch_size, seed, progress, workers
    ):
        mask = batch["attention_mask"][..., None]
        changes.append({})
        for name, gradient in gradients.items():
            change = traces[name].first_order(inputs[name] * mask, gradient * mask)  # (batch, groups + 1)
            changes[-1][name] = change.double().square().sum(0).cpu()
    changes = workers.gathered(changes)
    return {
        branch.name: torch.stack([change[branch.name] for change in changes]).sum(0) / len(features)
        for branch in branches
    }


def prior_names_for(priors: Mapping[str, Priors]) -> list[str]:
    """Return the priors that all branches have and that are worth trying, the most reliable first."""
    common = set.intersection(*(set(known) for known in priors.values()))
    return [name for name in ("exact", "factored", "scalar", "stream") if name in common]

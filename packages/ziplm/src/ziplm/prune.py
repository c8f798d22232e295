"""Stage 2, prune: one trace for each module, and what each of its levels is expected to harm.

Priors, by name, for every number of groups removed:

- ``factored``: tr(Γ ΔW (H/2) ΔWᵀ), the loss itself to second order if tokens are independent;
- ``scalar``: the mean diagonal of Γ times the plain error; wrong in detail, and less noisy;
- ``stream``: the error against the stream that it joins, as the next norm sees it; needs no gradients;
- ``exact``: E[(Σ_t g_t·ΔW (x_t − μ))²], the loss to second order with the errors of a sample's tokens added
  up, for outputs that pool many tokens;
- ``own``: the root of the error relative to the module's own output, as in the ZipLM paper.
"""

from collections.abc import Mapping, Sequence

import torch
from obs_structured import Trace, prune
from transformers import PreTrainedModel

from ziplm.adapters import Module, adapter_for
from ziplm.calibrate import Inputs, with_gradients
from ziplm.loss_metric import LossMetric
from ziplm.tasks.base import Features, Progress, Task
from ziplm.workers import ALONE, Workers

Priors = dict[str, torch.Tensor]
"""float64 (groups + 1,) by name of the prior."""


def prune_module(
    model: PreTrainedModel,
    module: Module,
    inputs: Inputs,
    metric: LossMetric | None,
    effective_tokens: int,
    *,
    centred: bool = True,
    method: str = "obs",
    update: bool = True,
    damping: float | None = None,
) -> tuple[Trace, Priors]:
    """Prune one output matrix on what it was given, and say what each level harms.

    Args:
        model: the dense one, not changed.
        module: which.
        inputs: from `gather_inputs`.
        metric: from `loss_metric`; without it all output directions count alike.
        effective_tokens: how many the weighted moments amount to, for the damping.
        centred: whether the bias takes over the mean of what is removed.
        method: of `obs_structured.prune`.
        update: whether the columns left are corrected.
        damping: relative; None chooses by the number of tokens.
    """
    adapter = adapter_for(model)
    weight = adapter.weight(model, module)
    moments = inputs.moments
    trace = prune(
        weight.to(moments.mean.device),
        moments.hessian,
        module.group_size,
        mean=moments.mean if centred else None,
        metric=None if metric is None else metric.selection(module.name).to(moments.mean.device),
        damping=damping,
        count=effective_tokens,
        method=method,
        update=update,
    )
    ones = torch.ones(weight.shape[0], dtype=torch.float64)
    priors = {"own": trace.errors.sqrt(), "stream": _stream_prior(model, module, inputs, trace)}
    if metric is not None:
        gamma = metric.gamma[module.name]
        priors["factored"] = trace.errors_under(gamma)
        priors["scalar"] = gamma.diagonal().mean() * trace.errors_under(ones)
    return trace, {name: prior.cpu() for name, prior in priors.items()}


def _stream_prior(model: PreTrainedModel, module: Module, inputs: Inputs, trace: Trace) -> torch.Tensor:
    """The error's variance as a share of the stream's, after the norm that the stream passes next."""
    norm = adapter_for(model).norm_after(model, module)
    rows = len(adapter_for(model).bias(model, module))
    centring = torch.eye(rows, dtype=torch.float64) - 1 / rows  # a norm does not see the mean over outputs
    scale = torch.ones(rows, dtype=torch.float64)
    if norm is not None and norm.weight is not None:
        scale = norm.weight.detach().double().cpu()
    metric = centring @ (scale.square()[:, None] * centring)
    return inputs.inverse_variance * trace.errors_under(metric) / max(inputs.spread, 1e-12)


def exact_priors(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    modules: Sequence[Module],
    traces: Mapping[str, Trace],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> dict[str, torch.Tensor]:
    """The exact prior of all levels, by name of the module: one forward and backward pass over `features`.

    The samples must be ones that the traces were not made from.
    """
    changes: list[dict[str, torch.Tensor]] = []  # of each batch, (groups + 1,) by name
    for batch, inputs, gradients in with_gradients(
        model, task, features, modules, batch_size, seed, progress, workers
    ):
        mask = batch["attention_mask"][..., None]
        changes.append({})
        for name, gradient in gradients.items():
            change = traces[name].first_order(inputs[name] * mask, gradient * mask)  # (batch, groups + 1)
            changes[-1][name] = change.double().square().sum(0).cpu()
    changes = workers.joined(changes)
    return {m.name: torch.stack([own[m.name] for own in changes]).sum(0) / len(features) for m in modules}

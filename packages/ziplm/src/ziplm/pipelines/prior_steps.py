"""Gather the priors of all branches: those that pruning stored, and those from samples it has not seen."""

from functools import partial

import torch
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import AttentionTrace
from ziplm.architectures.base import Branch
from ziplm.files import checked
from ziplm.pipelines.stored import exact_priors_in, orders_in, priors_in, score_harms_in
from ziplm.pipelines.values import Samples, Start
from ziplm.runs.folder import TENSORS, Run
from ziplm.stages.choices import Priors
from ziplm.stages.priors import add_whole_heads, exact_priors
from ziplm.stages.score_harms import add_scores, score_harms
from ziplm.stages.traces import StoredTraces


def gather_priors(
    start: Start, current: PreTrainedModel, samples: Samples, traces: StoredTraces, seed: int, run: Run
) -> dict[str, Priors]:
    """Return the priors of all branches; for the exact prior, processes share the batches."""
    branches = start.remaining_branches(current)
    widths = start.head_widths(current)
    narrowed = [branch for branch in branches if branch.name in widths]
    priors: dict[str, Priors] = {}
    orders: dict[str, torch.Tensor] = {}
    for branch in branches:
        path = run.priors_file(branch.name)
        counts = len(widths.get(branch.name, ()))
        check = partial(priors_in, branch=branch, gradients=start.options.gradients, widths=counts)
        tensors = TENSORS.read(path)
        priors[branch.name] = checked(path, check, tensors)
        if branch in narrowed:
            check_orders = partial(orders_in, branch=branch, widths=counts)
            orders[branch.name] = checked(path, check_orders, tensors)

    def make_scores() -> dict[str, torch.Tensor]:
        score_traces = {branch: _attention_trace(traces, branch).scores for branch in narrowed}
        with run.stage("prune", "prune: scores of narrower heads") as advance:
            return score_harms(
                current,
                start.task,
                samples.not_calibrated,
                score_traces,
                widths,
                batch_size=start.options.calibration_batch_size,
                seed=seed,
                progress=advance,
                workers=run.workers,
            )

    if narrowed:
        check_scores = partial(score_harms_in, branches=narrowed, widths=widths)
        found = run.stored(run.priors_file("scores"), make_scores, TENSORS, check_scores)
        for branch in narrowed:
            add_scores(priors[branch.name], orders[branch.name], found[branch.name])

    def make() -> dict[str, torch.Tensor]:
        with run.stage("prune", "prune: exact prior") as advance:
            return exact_priors(
                current,
                start.task,
                samples.not_calibrated,
                branches,
                traces,
                batch_size=start.options.calibration_batch_size,
                seed=seed,
                progress=advance,
                workers=run.workers,
                widths=widths,
            )

    if start.options.gradients and start.task.head.pooled:
        counted = {name: len(known) for name, known in widths.items()}
        check_exact = partial(exact_priors_in, branches=branches, widths=counted)
        for name, exact in run.stored(run.priors_file("exact"), make, TENSORS, check_exact).items():
            priors[name]["exact"] = exact
    if narrowed:
        add_whole_heads(priors)
    return priors


def _attention_trace(traces: StoredTraces, branch: Branch) -> AttentionTrace:
    """Read the trace of an attention whose heads may become narrower."""
    trace = traces[branch.name]
    assert isinstance(trace, AttentionTrace)
    return trace

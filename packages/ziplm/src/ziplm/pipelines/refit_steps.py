"""The step that refits a target's model, first with few samples, and keeps the result if it is better."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from ziplm.pipelines.values import Pruned, Refitted, Start, token_weights
from ziplm.runs.folder import Run
from ziplm.runs.progress import Advance
from ziplm.stages.evaluate import divergences_of_each
from ziplm.stages.refit import MOST_SAMPLES, TRIAL_SAMPLES, refit, with_own_outputs
from ziplm.tasks.base import Features
from ziplm.tasks.heads import Divergence, is_clearly_lower, mean_divergence


def refit_if_better(
    start: Start, pruned: Pruned, small: PreTrainedModel, run: Run
) -> tuple[PreTrainedModel, Refitted | None]:
    """Refit the model; keep the result if it is clearly closer to the dense model on held-out samples.

    A first refit with few samples shows whether it helps at all. If not, there is no second one with all.

    Returns:
        The model that is kept, and how the two compare; None without refit.
    """
    if not start.refits:
        return small, None
    samples = pruned.samples
    with run.stage("refit") as advance:
        if len(samples.calibration) > 2 * TRIAL_SAMPLES:
            tried = _refitted(start, pruned, small, TRIAL_SAMPLES, run, advance)
            trial = _compared(start, small, tried, [samples.judging], run)
            if not is_promising(trial):
                run.detail(
                    f"refit: ended after {TRIAL_SAMPLES} samples, divergence {trial.before:.4g} before and "
                    f"{trial.after:.4g} after, not kept"
                )
                return small, trial._replace(kept=False)
        refitted = _refitted(start, pruned, small, MOST_SAMPLES, run, advance)
        compared = _compared(start, small, refitted, [samples.search, samples.judging], run)
    run.detail(
        f"refit: divergence {compared.before:.4g} before and {compared.after:.4g} after, "
        + ("kept" if compared.kept else "not kept")
    )
    return (refitted if compared.kept else small), compared


def _refitted(
    start: Start, pruned: Pruned, small: PreTrainedModel, most_samples: int, run: Run, advance: Advance
) -> PreTrainedModel:
    """Refit a model in the first process, and send the weights to the others.

    Not by `Workers.first`, which would send the whole model as an object: only the weights are sent.
    """
    branches = start.remaining_branches(pruned.current)
    weights = {branch.name: token_weights(pruned.fisher, branch, pruned.samples)[0] for branch in branches}
    if run.workers.rank == 0:
        refitted = refit(
            start.dense,
            small,
            start.task,
            pruned.samples.calibration,
            weights,
            most_samples=most_samples,
            batch_size=start.options.calibration_batch_size,
            progress=advance,
        )
    else:
        refitted = with_own_outputs(small)
    run.workers.spread_weights(refitted)
    return refitted


def _compared(
    start: Start,
    small: PreTrainedModel,
    refitted: PreTrainedModel,
    parts: Sequence[Sequence[Features]],
    run: Run,
) -> Refitted:
    """Compare a model before and after a refit, which is kept if clearly better; processes share batches.

    The parts of the samples are those of the search, for which the dense model's outputs are known.
    """
    before: list[Divergence] = []
    after: list[Divergence] = []
    for samples in parts:
        found = divergences_of_each([small, refitted], start.dense_outputs, start.task, samples, run.workers)
        before += found[0]
        after += found[1]
    return Refitted(mean_divergence(before), mean_divergence(after), is_clearly_lower(after, before))


def is_promising(trial: Refitted) -> bool:
    """Return whether a second refit with all samples is worth it, after a first one with few."""
    return trial.after < trial.before

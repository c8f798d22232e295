"""Calibrate: the fisher, and the statistics of every branch.

One forward and backward pass finds, for each branch and token, the gradient g of the log-probability of an
outcome drawn from the model's own prediction, with respect to the residual stream just after the branch. Its
second moment Γ = E[g gᵀ] says which directions of the output matter, and its norm which tokens do. One
forward pass then gathers the inputs of the output matrices, weighted by token. No labels are needed. Padding
never counts.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from obs_structured import Moments
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.watching import Seen, watched
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.fisher import Fisher, ScoreMoments
from ziplm.stages.gradients import batch_gradients
from ziplm.stages.scores import ScoreSums
from ziplm.stages.statistics import BranchStatistics, StreamSums
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.finite import finite_outputs, require_finite


def gather_fisher(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
    narrowed: Sequence[Branch] = (),
) -> Fisher:
    """Compute the fisher of all remaining branches in one forward and backward pass over `features`.

    For the attentions in `narrowed`, it includes the moments of queries and keys.
    """
    architecture = architecture_of(model)
    branches = [branch for branch in architecture.branches(model) if branch.groups]
    gammas = {branch.name: Moments(architecture.weight(model, branch).shape[0], "cpu") for branch in branches}
    squares: list[dict[str, torch.Tensor]] = []  # of each batch
    sums = {branch.name: ScoreSums() for branch in narrowed}

    for batch, _, gradients, scores in batch_gradients(
        model, task, features, branches, batch_size, seed, progress, workers, narrowed
    ):
        mask = batch["attention_mask"].bool()
        squares.append({})
        for name, gradient in gradients.items():
            at_tokens = gradient[mask].float().cpu()  # (tokens, hidden)
            gammas[name].update(at_tokens)
            squares[-1][name] = at_tokens.square().sum(-1)
        for name, at_scores in scores.items():
            sums[name].add(*(rows[mask] for rows in at_scores))
    squares = workers.gathered(squares)
    for gamma in gammas.values():
        workers.add_up(gamma)
    return Fisher(
        {name: gamma.hessian / 2 for name, gamma in gammas.items()},
        {branch.name: torch.cat([by_name[branch.name] for by_name in squares]) for branch in branches},
        _merged_scores(workers.gathered([sums])),
    )


def _merged_scores(parts: Sequence[dict[str, ScoreSums]]) -> dict[str, ScoreMoments]:
    """Return the moments of queries and keys from the sums of all processes."""
    merged = {name: ScoreSums() for name in parts[0]}
    for part in parts:
        for name, sums in part.items():
            merged[name].merge(sums)
    return {name: sums.result() for name, sums in merged.items()}


@torch.inference_mode()
def gather_statistics(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    branches: Sequence[Branch],
    weights: dict[str, torch.Tensor | None],
    *,
    batch_size: int = 16,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> dict[str, BranchStatistics]:
    """Gather the statistics of the given branches in one forward pass over `features`.

    Args:
        model: the current model, in eval mode.
        task: makes the batches.
        features: the samples, in the order for which `weights` were computed.
        branches: the branches; each takes 8 * columns² bytes of memory.
        weights: weights of all tokens, (tokens,), by branch name; None for equal weights.
        batch_size: samples per batch.
        progress: called with the number of samples done and the total.
        workers: the processes that share the batches; all get the result over all samples.

    Returns:
        The statistics by branch name.

    Raises:
        NotFinite: if the inputs of a branch, or the outputs of the model, are not finite.
    """
    architecture = architecture_of(model)
    position = _Position()
    taps = {branch.name: _Tap(architecture, model, branch, weights, position) for branch in branches}
    done = 0
    with ExitStack() as stack:
        for branch in branches:
            stack.enter_context(watched(architecture, model, branch, taps[branch.name].see))
        for number, (chosen, batch) in enumerate(task.batches(features, batch_size, model.device)):
            position.mask = batch["attention_mask"].bool()
            if workers.owns(number):
                finite_outputs(task.head, model, batch)
            position.first_token += int(position.mask.sum())
            done += len(chosen)
            if progress is not None:
                progress(done, len(features))
    streams = workers.gathered([{name: tap.stream for name, tap in taps.items()}])  # one for each process
    return {name: tap.result([sums[name] for sums in streams], workers) for name, tap in taps.items()}


class _Position:
    """The current batch's position among all tokens, shared by the taps of all branches.

    Attributes:
        mask: (batch, tokens), True where a token is not padding.
        first_token: number of tokens in earlier batches.
    """

    def __init__(self) -> None:
        self.mask = torch.empty(0, dtype=torch.bool)
        self.first_token = 0


class _Tap:
    """Accumulates the statistics of one branch during a forward pass."""

    def __init__(
        self,
        architecture: Architecture,
        model: PreTrainedModel,
        branch: Branch,
        weights: dict[str, torch.Tensor | None],
        position: _Position,
    ) -> None:
        # Sums are float64, which MPS devices do not have.
        self._device = model.device if model.device.type != "mps" else torch.device("cpu")
        self._norm = architecture.norm_after(model, branch)
        self._name = branch.name
        self._weights, self._position = weights.get(branch.name), position
        self.moments = Moments(architecture.weight(model, branch).shape[1], self._device)
        self.stream = StreamSums(centred=not architecture.declaration.rms_norm)

    def see(self, seen: Seen) -> None:
        """Add one forward pass."""
        mask, first = self._position.mask, self._position.first_token
        require_finite(f"the inputs of {self._name}", [seen.inputs])
        weights = None
        if self._weights is not None:
            weights = self._weights[first : first + int(mask.sum())].to(self._device)
        self.moments.update(seen.inputs[mask].float(), weights)
        self.stream.add(seen.after[mask].double(), self._norm)

    def result(self, streams: Sequence[StreamSums], workers: Workers) -> BranchStatistics:
        """Combine the statistics of all processes."""
        workers.add_up(self.moments)
        stream = StreamSums(self.stream.centred)
        for sums in streams:
            stream.merge(sums)
        return BranchStatistics(self.moments, *stream.result())

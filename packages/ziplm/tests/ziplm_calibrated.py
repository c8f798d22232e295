"""A tiny model with everything that pruning its branches needs."""

from typing import Any

import torch
from obs_structured import Trace
from transformers import PreTrainedModel
from ziplm import shrink
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.choices import Priors
from ziplm.stages.priors import branch_priors
from ziplm.stages.prune import prune_branch
from ziplm_pipeline import (
    KnownScore,
    MadeUpTask,
    lively_model,
    samples,
)

TASK = MadeUpTask(KnownScore())


class Calibrated:
    """A tiny model with everything that pruning needs, gathered from a few samples."""

    def __init__(self, name: str) -> None:
        self.model = lively_model(name)
        self.architecture = architecture_of(self.model)
        self.features = samples(name, 30)
        self.others = samples(name, 6, seed=5)
        self.branches = self.architecture.branches(self.model)
        self.fisher = gather_fisher(self.model, TASK, self.features)
        self.weights = {b.name: self.fisher.token_weights(b.name, 1)[0] for b in self.branches}
        self.inputs = gather_statistics(self.model, TASK, self.features, self.branches, self.weights)

    def pruned(self, branch: Branch, **options: Any) -> tuple[Trace, Priors]:
        """Return the trace and the priors of a branch; options are those of `prune_branch`."""
        inputs = self.inputs[branch.name]
        given = {"fisher": self.fisher, "effective_tokens": 100, **options}
        trace = prune_branch(self.model, branch, inputs, **given)
        return trace, branch_priors(self.model, branch, inputs, given["fisher"], trace)

    def change(self, branch: Branch, trace: Trace, removed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ΔW (hidden, columns) and Δb (hidden,) in float64, taken from the shrunk model."""
        small = shrunk(self.model, branch, trace, removed)
        dense = self.architecture.weight(self.model, branch).detach().double()
        left = torch.zeros_like(dense)
        if removed < branch.groups:
            own = self.architecture.branches(small)[self.branches.index(branch)]
            left[:, trace.columns(removed)] = self.architecture.weight(small, own).detach().double()
        shift = self.architecture.bias(small, branch) - self.architecture.bias(self.model, branch)
        return left - dense, shift.detach().double()


def shrunk(model: PreTrainedModel, branch: Branch, trace: Trace, removed: int) -> PreTrainedModel:
    """Return the model with a single branch reduced."""
    branches = architecture_of(model).branches(model)
    counts = [removed if own == branch else 0 for own in branches]
    return shrink(model, counts, [trace if own == branch else None for own in branches])

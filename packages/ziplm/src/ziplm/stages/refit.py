"""Refit: fit the remaining output matrices to the dense model by least squares, branch by branch.

For each branch in order, min over (W, b) of Σ w ‖W h + b − (s − r)‖² + λ ‖W − Ŵ‖², with h the shrunk model's
own inputs of the output matrix, r its residual stream before the branch, s the dense model's stream after
it, and w the weight of the token. λ pulls towards the present weights Ŵ, not towards zero.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.watching import Seen, watched
from ziplm.stages.replay import replayed
from ziplm.tasks.base import Features, Progress, Task
from ziplm.tasks.heads import Batch

DAMPING = 0.01  # λ relative to the mean diagonal of the inputs' covariance
STATE_BYTES = 2**30
MOST_SAMPLES = 1024
TRIAL_SAMPLES = 256  # of a first refit, which shows whether a second one with all samples is worth it


class _Enough(Exception):
    """Raised when the layer has run, to skip the rest of the forward pass."""


@torch.no_grad()  # not inference mode, whose tensors could not be fine-tuned later
def refit(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    weights: Mapping[str, torch.Tensor | None],
    *,
    damping: float = DAMPING,
    most_samples: int = MOST_SAMPLES,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> PreTrainedModel:
    """Return a model like `small` with output matrices fitted to the dense model's residual stream.

    Args:
        dense: the dense model, or another with the same layers.
        small: the shrunk model. It is not changed; the result shares all other parameters with it.
        task: makes the batches.
        features: samples; some batches are left out if their hidden states would need more than 1 GiB.
        weights: weights of all tokens by branch name, (tokens,) in the order of `Task.batches`; None for
            equal weights.
        most_samples: upper limit of the number of samples used.
        damping: λ relative to the mean variance of the inputs.
        batch_size: samples per batch.
        progress: called with the number of layers done and the total.
    """
    architecture = architecture_of(dense)
    small = with_own_outputs(small)
    batches, first_tokens = _chosen_batches(dense, task, features, batch_size, most_samples)
    layers = len(architecture.layers(dense))
    by_layer = [architecture.branches(small)[2 * layer : 2 * layer + 2] for layer in range(layers)]
    goal_states: list[torch.Tensor | None] = [None] * len(batches)  # before the layer, of the dense model
    small_states: list[torch.Tensor | None] = [None] * len(batches)  # before the layer, of the small model
    for layer, branches in enumerate(by_layer):
        goals = []
        for number, batch in enumerate(batches):
            goal_states[number], seen = _run_layer(dense, task, batch, layer, goal_states[number], branches)
            goals.append({name: one.after for name, one in seen.items()})
        for branch in branches:
            sums = _Sums(architecture, small, branch)
            token_weights = weights.get(branch.name)
            for batch, first, state, goal in zip(batches, first_tokens, small_states, goals, strict=True):
                mask = batch["attention_mask"].bool()
                own = _run_layer(small, task, batch, layer, state, [branch])[1][branch.name]
                chosen = slice(first, first + int(mask.sum()))
                sums.add(
                    own.inputs[mask],
                    (goal[branch.name] - own.before)[mask],
                    None if token_weights is None else token_weights[chosen].to(mask.device),
                )
            sums.solve(damping)
        small_states = [
            _run_layer(small, task, batch, layer, state, [])[0]
            for batch, state in zip(batches, small_states, strict=True)
        ]
        if progress is not None:
            progress(layer + 1, layers)
    return small


def with_own_outputs(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model in eval mode with its own output matrices and biases; the rest is shared."""
    made: PreTrainedModel = structure_copy(model)  # type: ignore[assignment]
    architecture = architecture_of(made)
    for branch in architecture.branches(made):
        layer = architecture.output_layer(made, branch)
        for name, parameter in layer.named_parameters(recurse=False):
            setattr(layer, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    return made.eval()


def _chosen_batches(
    model: PreTrainedModel, task: Task, features: Sequence[Features], batch_size: int, most_samples: int
) -> tuple[list[Batch], list[int]]:
    """Return every n-th batch, so that all lengths occur, and the index of its first token among all."""
    pairs = [(batch, int(batch["attention_mask"].sum())) for _, batch in task.batches(features, batch_size)]
    # In memory at once: the states of both models, and the goal streams after the two branches of a layer.
    room = STATE_BYTES / (4 * 4 * model.config.hidden_size)
    tokens = sum(batch["input_ids"].numel() for batch, _ in pairs)
    every = max(1, math.ceil(len(features) / most_samples), math.ceil(tokens / room))
    first_tokens = [0, *itertools.accumulate(count for _, count in pairs)]
    chosen = range(0, len(pairs), every)
    on_device = [{name: value.to(model.device) for name, value in pairs[n][0].items()} for n in chosen]
    return on_device, [first_tokens[n] for n in chosen]


def _run_layer(
    model: PreTrainedModel,
    task: Task,
    batch: Batch,
    layer: int,
    state: torch.Tensor | None,
    branches: Sequence[Branch],
) -> tuple[torch.Tensor, dict[str, Seen]]:
    """Run one layer from the state before it; return its output, and the record of each branch, by name."""
    architecture = architecture_of(model)
    layers = architecture.layers(model)
    output: list[torch.Tensor] = []
    seen: dict[str, Seen] = {}

    def stop(_: nn.Module, __: Any, made: Any) -> None:
        output.append(made[0] if isinstance(made, tuple) else made)
        raise _Enough

    with ExitStack() as stack:
        stack.enter_context(replayed(architecture, layers, layer, state))
        for branch in branches:
            stack.enter_context(watched(architecture, model, branch, partial(seen.__setitem__, branch.name)))
        stack.enter_context(layers[layer].register_forward_hook(stop))
        with suppress(_Enough):
            task.head.outputs(model, batch)
    return output[0], seen


class _Sums:
    """Weighted sums over tokens, from which one branch's output matrix is solved."""

    def __init__(self, architecture: Architecture, model: PreTrainedModel, branch: Branch) -> None:
        self._bias = architecture.bias(model, branch)
        self._weight = architecture.weight(model, branch) if branch.groups else None
        columns, rows = branch.columns, model.config.hidden_size
        make = {"dtype": torch.float64, "device": model.device}
        self._total = 0.0
        self._given, self._goal = torch.zeros(columns, **make), torch.zeros(rows, **make)  # type: ignore[call-overload]
        self._square = torch.zeros(columns, columns, **make)  # type: ignore[call-overload]
        self._cross = torch.zeros(rows, columns, **make)  # type: ignore[call-overload]
        self._origin: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, given: torch.Tensor, goal: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Add inputs (tokens, columns) and the outputs that the branch should return (tokens, rows)."""
        if self._weight is None:
            given = goal.new_zeros(len(goal), 0)
        if self._origin is None:
            # Products have the model's precision: subtracting an early mean keeps their leading digits. If
            # there is no bias, the mean must be fitted by the weights as well.
            origin = given.mean(0), goal.mean(0)
            self._origin = origin if self._bias is not None else (0 * origin[0], 0 * origin[1])
        given, goal = given - self._origin[0], goal - self._origin[1]
        w = goal.new_ones(len(goal)) if weights is None else weights.to(goal.dtype)
        weighted = given * w[:, None]
        self._total += float(w.double().sum())
        self._goal += (w @ goal).double()
        self._given += weighted.sum(0, dtype=torch.float64)
        self._square += (weighted.mT @ given).double()
        self._cross += (goal.mT @ weighted).double()

    def solve(self, damping: float) -> None:
        """Write the solution into the model."""
        assert self._origin is not None
        given, goal = self._given / self._total, self._goal / self._total
        if self._bias is None:
            given, goal = 0 * given, 0 * goal
        square = self._square / self._total - given.outer(given)
        cross = self._cross / self._total - goal.outer(given)
        given, goal = given + self._origin[0], goal + self._origin[1]
        if self._weight is None:
            if self._bias is not None:
                self._bias.copy_(goal)
            return
        weight = self._weight.double()
        scale = float(square.diagonal().mean())
        if scale > 1e-10 * float(given.square().mean()):  # constant inputs determine nothing
            square.diagonal().add_(damping * scale)
            right = cross + damping * scale * weight  # right-hand side of the normal equations, pulled to Ŵ
            weight = torch.cholesky_solve(right.mT, torch.linalg.cholesky(square)).mT
            self._weight.copy_(weight)
        if self._bias is not None:
            self._bias.copy_(goal - weight @ given)

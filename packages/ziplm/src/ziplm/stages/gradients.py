"""Gradients of the model's own log-probability at branches' outputs, queries and keys, batch by batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.registry import architecture_of
from ziplm.errors import NotFinite
from ziplm.runs.workers import ALONE, Workers
from ziplm.tasks.base import Features, Progress, Task

# In a batch on a CPU. A pass with gradients keeps all hidden states, about 0.5 MB for each token of a
# BERT-base, and larger batches are not faster there.
MOST_TOKENS = 1024


class AtScores(NamedTuple):
    """Queries, keys and the gradients there of an attention, (batch, tokens, heads, d) each."""

    queries: torch.Tensor
    keys: torch.Tensor
    at_queries: torch.Tensor
    at_keys: torch.Tensor


class BatchGradients(NamedTuple):
    """One batch, with the inputs of the branches' output matrices and the gradients at the branches' outputs.

    Attributes:
        batch: the batch.
        inputs: inputs of the output matrices by branch name, each (batch, tokens, columns).
        gradients: gradients with respect to the outputs by branch name, each (batch, tokens, hidden).
        scores: queries and keys, and the gradients there, by branch name, where they are asked for.
    """

    batch: dict[str, torch.Tensor]
    inputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    scores: dict[str, AtScores]


def batch_gradients(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    branches: Sequence[Branch],
    batch_size: int,
    seed: int,
    progress: Progress | None = None,
    workers: Workers = ALONE,
    narrowed: Sequence[Branch] = (),
) -> Iterator[BatchGradients]:
    """Iterate over this process's batches with the gradients of a sampled log-probability.

    The random draw for a batch depends on the seed and the batch's position only, not on the process that
    handles it. Queries and keys are reported for the attentions in `narrowed`.
    """
    architecture = architecture_of(model)
    inputs: dict[str, torch.Tensor] = {}
    outputs: dict[tuple[str, str], torch.Tensor] = {}  # by branch name, and path of a module or ""

    def watch(name: str, path: str = "") -> Callable[..., torch.Tensor]:
        def keep(_: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            # Nothing before the first branch needs a gradient, so the graph starts there.
            output = output if output.requires_grad else output.detach().requires_grad_()
            outputs[name, path] = output
            if not path:
                inputs[name] = arguments[0].detach()
            return output

        return keep

    generator = torch.Generator()
    most_tokens = MOST_TOKENS if model.device.type == "cpu" else None
    done = 0
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        for branch in branches:
            layer = architecture.output_layer(model, branch)
            stack.enter_context(layer.register_forward_hook(watch(branch.name)))
        for branch in narrowed:
            for path in _score_paths(architecture, model, branch):
                module = architecture.layers(model)[branch.layer].get_submodule(path)
                stack.enter_context(module.register_forward_hook(watch(branch.name, path)))
        for number, (chosen, batch) in enumerate(
            task.batches(features, batch_size, model.device, most_tokens)
        ):
            if workers.owns(number):
                generator.manual_seed(seed * 1_000_003 + done)
                made = task.head.outputs(model, batch)
                _require_finite("outputs", [made], len(chosen))  # else no outcome can be drawn
                score = task.head.score(model, made, batch, generator)
                found = torch.autograd.grad(score, list(outputs.values()), materialize_grads=True)
                _require_finite("gradients", found, len(chosen))
                at = dict(zip(outputs, found, strict=True))
                yield BatchGradients(
                    batch,
                    inputs,
                    {name: gradient for (name, path), gradient in at.items() if not path},
                    {
                        branch.name: _at_scores(architecture, model, branch, outputs, at)
                        for branch in narrowed
                    },
                )
                outputs.clear()
            done += len(chosen)
            if progress is not None:
                progress(done, len(features))


def _score_paths(architecture: Architecture, model: PreTrainedModel, branch: Branch) -> list[str]:
    """Return the paths of the linear layers that compute an attention's queries and keys."""
    rows = architecture.spec(model, branch).rows
    return [own.path for own in rows if {"query", "key"} & set(own.roles)]


def _at_scores(
    architecture: Architecture,
    model: PreTrainedModel,
    branch: Branch,
    outputs: Mapping[tuple[str, str], torch.Tensor],
    gradients: Mapping[tuple[str, str], torch.Tensor],
) -> AtScores:
    """Take the queries and keys of an attention, and the gradients there, from its linear layers."""
    by_role: dict[tuple[str, bool], torch.Tensor] = {}
    for rows in architecture.spec(model, branch).rows:
        for is_gradient, tensors in ((False, outputs), (True, gradients)):
            if (branch.name, rows.path) in tensors:
                blocks = tensors[branch.name, rows.path].detach().chunk(len(rows.roles), dim=-1)
                for role, block in zip(rows.roles, blocks, strict=True):
                    by_role[role, is_gradient] = block.unflatten(-1, (branch.groups, -1))
    return AtScores(
        *(by_role[role, is_gradient] for is_gradient in (False, True) for role in ("query", "key"))
    )


def _require_finite(what: str, values: Iterable[torch.Tensor], samples: int) -> None:
    if not all(bool(value.isfinite().all()) for value in values):
        raise NotFinite(
            f"{what} are not finite in a batch of {samples} samples", "check the model, or use --no-gradients"
        )


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """While open, no parameter requires a gradient, and dropout is off."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    training = model.training
    try:
        model.requires_grad_(False).eval()
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        model.train(training)

"""Gradients of the model's own log-probability at every branch's output, batch by batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.errors import NotFinite
from ziplm.runs.workers import ALONE, Workers
from ziplm.tasks.base import Features, Progress, Task


class BatchGradients(NamedTuple):
    """One batch, with the inputs of the branches' output matrices and the gradients at the branches' outputs.

    Attributes:
        batch: the batch.
        inputs: inputs of the output matrices by branch name, each (batch, tokens, columns).
        gradients: gradients with respect to the outputs by branch name, each (batch, tokens, hidden).
    """

    batch: dict[str, torch.Tensor]
    inputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def batch_gradients(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    branches: Sequence[Branch],
    batch_size: int,
    seed: int,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> Iterator[BatchGradients]:
    """Iterate over this process's batches with the gradients of a sampled log-probability.

    The random draw for a batch depends on the seed and the batch's position only, not on the process that
    handles it.
    """
    architecture = architecture_of(model)
    inputs: dict[str, torch.Tensor] = {}
    outputs: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Callable[..., torch.Tensor]:
        def keep(_: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            # Nothing before the first branch needs a gradient, so the graph starts at its output.
            output = output if output.requires_grad else output.detach().requires_grad_()
            inputs[name], outputs[name] = arguments[0].detach(), output
            return output

        return keep

    generator = torch.Generator()
    done = 0
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        for branch in branches:
            layer = architecture.output_layer(model, branch)
            stack.enter_context(layer.register_forward_hook(watch(branch.name)))
        for number, (chosen, batch) in enumerate(task.batches(features, batch_size, model.device)):
            if workers.owns(number):
                generator.manual_seed(seed * 1_000_003 + done)
                made = task.head.outputs(model, batch)
                _require_finite("outputs", [made], len(chosen))  # else no outcome can be drawn
                score = task.head.score(model, made, batch, generator)
                found = torch.autograd.grad(score, list(outputs.values()), materialize_grads=True)
                _require_finite("gradients", found, len(chosen))
                yield BatchGradients(batch, inputs, dict(zip(outputs, found, strict=True)))
                outputs.clear()
            done += len(chosen)
            if progress is not None:
                progress(done, len(features))


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

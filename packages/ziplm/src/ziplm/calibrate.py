"""Stage 1, calibrate: what prunable modules are given, and what the loss feels of what they say.

One forward and backward pass finds, for each module and token, the gradient g of a log-probability drawn from
the model's own prediction, with respect to the stream just after the module. Its second moment Γ = E[g gᵀ]
says which directions of the output matter, its length which tokens do. One forward pass then gathers the
inputs of the output matrices, weighted by token. No labels are needed. Padding never counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from obs_structured import Moments
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import Module, adapter_for
from ziplm.errors import ZipLMError
from ziplm.loss_metric import LossMetric
from ziplm.tasks.base import Features, Progress, Task
from ziplm.workers import ALONE, Workers


@dataclass
class Inputs:
    """What one module was given.

    Attributes:
        moments: of the inputs of its output matrix.
        inverse_variance: mean over tokens of 1 / variance of the stream after the module.
        spread: Σ over dimensions of the variance over tokens of the stream once it is normalised.
    """

    moments: Moments
    inverse_variance: float = 0.0
    spread: float = 0.0


def loss_metric(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    *,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> LossMetric:
    """One forward and backward pass over `features`, for all modules that are left."""
    adapter = adapter_for(model)
    modules = [module for module in adapter.modules(model) if module.groups]
    gammas = {module.name: Moments(adapter.weight(model, module).shape[0], "cpu") for module in modules}
    squares: list[dict[str, torch.Tensor]] = []  # of each batch

    def take(name: str, gradient: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        felt = gradient[batch["attention_mask"].bool()].float().cpu()  # (tokens, hidden)
        gammas[name].update(felt)
        return felt.square().sum(-1)

    for batch, _, gradients in with_gradients(
        model, task, features, modules, batch_size, seed, progress, workers
    ):
        squares.append({name: take(name, gradient, batch) for name, gradient in gradients.items()})
    squares = workers.joined(squares)
    for gamma in gammas.values():
        workers.add_up(gamma)
    return LossMetric(
        {name: gamma.hessian / 2 for name, gamma in gammas.items()},
        {module.name: torch.cat([own[module.name] for own in squares]) for module in modules},
    )


def with_gradients(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    modules: Sequence[Module],
    batch_size: int,
    seed: int,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Batches, with each module's input of the output matrix and the gradient at its output, by name.

    What is drawn for a batch depends on the samples before it, whoever does those.
    """
    adapter = adapter_for(model)
    inputs: dict[str, torch.Tensor] = {}
    outputs: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Callable[..., torch.Tensor]:
        def keep(_: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            # Nothing before the first module needs a gradient: this is where the graph begins.
            output = output if output.requires_grad else output.detach().requires_grad_()
            inputs[name], outputs[name] = arguments[0].detach(), output
            return output

        return keep

    generator = torch.Generator()
    done = 0
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        for module in modules:
            layer = adapter.output_layer(model, module)
            stack.enter_context(layer.register_forward_hook(watch(module.name)))
        for number, (chosen, batch) in enumerate(task.batches(features, batch_size, model.device)):
            if workers.owns(number):
                generator.manual_seed(seed * 1_000_003 + done)
                said = task.head.outputs(model, batch)
                _require_finite("outputs", [said], len(chosen))  # nothing can be drawn from others
                score = task.head.score(model, said, batch, generator)
                found = torch.autograd.grad(score, list(outputs.values()), materialize_grads=True)
                _require_finite("gradients", found, len(chosen))
                yield batch, inputs, dict(zip(outputs, found, strict=True))
                outputs.clear()
            done += len(chosen)
            if progress is not None:
                progress(done, len(features))


def _require_finite(what: str, values: Iterable[torch.Tensor], samples: int) -> None:
    if not all(bool(value.isfinite().all()) for value in values):
        raise ZipLMError(
            f"{what} are not finite in a batch of {samples} samples", "check the model, or use --no-gradients"
        )


@torch.inference_mode()
def gather_inputs(
    model: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    modules: Sequence[Module],
    weights: dict[str, torch.Tensor | None],
    *,
    batch_size: int = 16,
    progress: Progress | None = None,
    workers: Workers = ALONE,
) -> dict[str, Inputs]:
    """One forward pass: moments of what the output matrices of `modules` are given, and of the stream after.

    Args:
        model: in eval mode.
        task: makes the batches.
        features: the samples that `weights` were found on, in the same order.
        modules: of which; each takes in_features² * 8 bytes.
        weights: by name; (tokens,) as in `LossMetric.token_weights`, or None for equal ones.
        batch_size: samples at a time.
        progress: called with the samples done.
        workers: who the batches are dealt out to; each gets what all have found.
    """
    adapter = adapter_for(model)
    device = model.device if model.device.type != "mps" else torch.device("cpu")  # sums are float64
    found = {m.name: Inputs(Moments(adapter.weight(model, m).shape[1], device)) for m in modules}
    streams = {m.name: _StreamSums() for m in modules}
    before: dict[str, torch.Tensor] = {}
    mask = torch.empty(0)
    first = 0  # place of this batch's first token among all

    def remember(name: str, argument: int) -> Callable[..., None]:
        def keep(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            before[name] = arguments[argument]

        return keep

    def take(module: Module, norm: nn.LayerNorm | None) -> Callable[..., None]:
        def add(_: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
            name, given = module.name, arguments[0]
            own = weights.get(name)
            here = None if own is None else own[first : first + int(mask.sum())]
            found[name].moments.update(given[mask].float(), None if here is None else here.to(device))
            streams[name].add((before.pop(name) + output)[mask].double(), norm)

        return add

    done = 0
    with ExitStack() as stack:
        for module in modules:
            point = adapter.stream_before(model, module)
            stack.enter_context(point.module.register_forward_pre_hook(remember(module.name, point.argument)))
            hook = take(module, adapter.norm_after(model, module))
            stack.enter_context(adapter.output_layer(model, module).register_forward_hook(hook))
        for number, (chosen, batch) in enumerate(task.batches(features, batch_size, model.device)):
            mask = batch["attention_mask"].bool()
            if workers.owns(number):
                task.head.outputs(model, batch)
            first += int(mask.sum())
            done += len(chosen)
            if progress is not None:
                progress(done, len(features))
    everywhere = workers.joined([streams])
    for name, inputs in found.items():
        workers.add_up(inputs.moments)
        stream = _StreamSums()
        for own in everywhere:
            stream.merge(own[name])
        inputs.inverse_variance, inputs.spread = stream.result()
    return found


class _StreamSums:
    """Sums over tokens that the stream prior needs."""

    def __init__(self) -> None:
        self.inverse, self.count = 0.0, 0
        self.total: torch.Tensor | float = 0.0
        self.squares: torch.Tensor | float = 0.0

    def add(self, stream: torch.Tensor, norm: nn.LayerNorm | None) -> None:
        """Take in streams (tokens, hidden) in float64."""
        variance = stream.var(-1, correction=0)
        says = variance >= 1e-12  # positions whose stream is constant say nothing, and would divide by zero
        stream, inverse = stream[says], 1 / variance[says]
        normalised = (stream - stream.mean(-1, keepdim=True)) * inverse.sqrt()[:, None]
        if norm is not None and norm.weight is not None:
            normalised = normalised * norm.weight.double()
        self.inverse += float(inverse.sum())
        self.count += len(stream)
        self.total = self.total + normalised.sum(0).cpu()
        self.squares = self.squares + normalised.square().sum(0).cpu()

    def merge(self, other: "_StreamSums") -> None:
        """Add what was taken in elsewhere."""
        self.inverse += other.inverse
        self.count += other.count
        self.total = self.total + other.total
        self.squares = self.squares + other.squares

    def result(self) -> tuple[float, float]:
        """Mean of 1/σ², and the summed variance of the normalised stream."""
        if not self.count:
            return 0.0, 0.0
        assert isinstance(self.total, torch.Tensor)
        variance = self.squares / self.count - (self.total / self.count).square()
        return self.inverse / self.count, float(variance.sum())


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """No parameter takes a gradient for the duration, and dropout is off."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    training = model.training
    try:
        model.requires_grad_(False).eval()
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        model.train(training)

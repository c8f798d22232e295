"""Stage 6, refit: what is left learns to do the dense model's work, by least squares, module after module.

For each module in order, min over (W, b) of Σ w ‖W h + b − (s − r)‖² + λ ‖W − Ŵ‖², with h the shrunk model's
own inputs of the output matrix, r its stream before the module, s the dense model's stream after it, and w
the weight of the token. λ pulls towards the weights that there are, not towards zero.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import Adapter, Module, adapter_for
from ziplm.adapters.pieces import structure_copy
from ziplm.heads import Batch
from ziplm.stitch import replayed
from ziplm.tasks.base import Features, Progress, Task

DAMPING = 0.01  # λ relative to the mean diagonal of the inputs' covariance
STATE_BYTES = 2**30


class _Enough(Exception):
    """The layer has run; what follows is not needed."""


@torch.no_grad()  # and not inference mode, in which the result could never be trained
def refit(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    task: Task,
    features: Sequence[Features],
    weights: Mapping[str, torch.Tensor | None],
    *,
    damping: float = DAMPING,
    most_samples: int = 1024,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> PreTrainedModel:
    """A model like `small` whose output matrices are fitted to the dense model's stream; it shares the rest.

    Args:
        dense: the model that `small` was made from.
        small: the shrunk model; it is not changed.
        task: makes the batches.
        features: samples; as many are used as states of 1 GiB can be kept for.
        weights: by name of the module, (tokens,) in the order of `Task.batches`, or None for equal ones.
        most_samples: how many of the samples to use.
        damping: λ relative to the mean variance of the inputs.
        batch_size: samples at a time.
        progress: called with the layers done.
    """
    adapter = adapter_for(dense)
    small = with_own_outputs(small)
    batches, places = _chosen_batches(dense, task, features, batch_size, most_samples)
    layers = len(adapter.layers(dense))
    by_layer = [adapter.modules(small)[2 * place : 2 * place + 2] for place in range(layers)]
    dense_states: list[torch.Tensor | None] = [None] * len(batches)
    own_states: list[torch.Tensor | None] = [None] * len(batches)
    for place, modules in enumerate(by_layer):
        goals = []
        for number, batch in enumerate(batches):
            dense_states[number], seen = _run_layer(dense, task, batch, place, dense_states[number], modules)
            goals.append({name: before + made for name, (_, before, made) in seen.items()})
        for module in modules:
            sums = _Sums(adapter, small, module)
            for batch, first, state, goal in zip(batches, places, own_states, goals, strict=True):
                mask = batch["attention_mask"].bool()
                _, seen = _run_layer(small, task, batch, place, state, [module])
                given, before, _ = seen[module.name]
                own = weights.get(module.name)
                here = None if own is None else own[first : first + int(mask.sum())].to(mask.device)
                wanted = (goal[module.name] - before)[mask]
                sums.add(None if given is None else given[mask], wanted, here)
            sums.solve(damping)
        own_states = [
            _run_layer(small, task, batch, place, state, [])[0]
            for batch, state in zip(batches, own_states, strict=True)
        ]
        if progress is not None:
            progress(place + 1, layers)
    return small


def with_own_outputs(model: PreTrainedModel) -> PreTrainedModel:
    """The model with a copy of all output matrices and their biases, in eval mode; the rest is shared."""
    made: PreTrainedModel = structure_copy(model)  # type: ignore[assignment]
    adapter = adapter_for(made)
    for module in adapter.modules(made):
        layer = adapter.output_layer(made, module)
        for name, parameter in layer.named_parameters(recurse=False):
            setattr(layer, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    return made.eval()


def _chosen_batches(
    model: PreTrainedModel, task: Task, features: Sequence[Features], batch_size: int, most_samples: int
) -> tuple[list[Batch], list[int]]:
    """Every n-th batch, so that all lengths are among them, and the place of its first token among all."""
    pairs = [(batch, int(batch["attention_mask"].sum())) for _, batch in task.batches(features, batch_size)]
    # Alive at once: the state of both models, and the dense stream after the two modules of a layer.
    room = STATE_BYTES / (4 * 4 * model.config.hidden_size)
    tokens = sum(batch["input_ids"].numel() for batch, _ in pairs)
    every = max(1, math.ceil(len(features) / most_samples), math.ceil(tokens / room))
    places = [0, *itertools.accumulate(count for _, count in pairs)]
    chosen = range(0, len(pairs), every)
    on_device = [{name: value.to(model.device) for name, value in pairs[n][0].items()} for n in chosen]
    return on_device, [places[n] for n in chosen]


Seen = dict[str, tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]]


def _run_layer(
    model: PreTrainedModel,
    task: Task,
    batch: Batch,
    place: int,
    state: torch.Tensor | None,
    modules: Sequence[Module],
) -> tuple[torch.Tensor, Seen]:
    """Run one layer from the state before it: its output, and (inputs, stream before, output) of modules."""
    adapter = adapter_for(model)
    layers = adapter.layers(model)
    output: list[torch.Tensor] = []
    before: dict[str, torch.Tensor] = {}
    seen: Seen = {}

    def stop(_: nn.Module, __: Any, made: torch.Tensor) -> None:
        output.append(made)
        raise _Enough

    with ExitStack() as stack:
        stack.enter_context(replayed(layers, place, state))
        for handle in _watch(adapter, model, modules, before, seen):
            stack.enter_context(handle)
        stack.enter_context(layers[place].register_forward_hook(stop))
        with suppress(_Enough):
            task.head.outputs(model, batch)
    return output[0], seen


def _watch(
    adapter: Adapter,
    model: PreTrainedModel,
    modules: Sequence[Module],
    before: dict[str, torch.Tensor],
    seen: Seen,
) -> Iterator[Any]:
    """Hooks that note what the modules are given, what they are added to, and what they say."""
    for module in modules:
        point = adapter.stream_before(model, module)

        def remember(
            _: nn.Module, arguments: tuple[Any, ...], name: str = module.name, which: int = point.argument
        ) -> None:
            before[name] = arguments[which]

        def take(
            _: nn.Module, arguments: tuple[Any, ...], made: torch.Tensor, name: str = module.name
        ) -> None:
            seen[name] = (arguments[0] if arguments else None, before[name], made)

        yield point.module.register_forward_pre_hook(remember)
        yield adapter.output_layer(model, module).register_forward_hook(take)


class _Sums:
    """Weighted sums over tokens from which one module's output matrix is solved."""

    def __init__(self, adapter: Adapter, model: PreTrainedModel, module: Module) -> None:
        self._bias = adapter.bias(model, module)
        self._weight = adapter.weight(model, module) if module.groups else None
        columns, rows = module.groups * module.group_size, len(self._bias)
        make = {"dtype": torch.float64, "device": self._bias.device}
        self._total = 0.0
        self._given, self._goal = torch.zeros(columns, **make), torch.zeros(rows, **make)  # type: ignore[call-overload]
        self._square = torch.zeros(columns, columns, **make)  # type: ignore[call-overload]
        self._cross = torch.zeros(rows, columns, **make)  # type: ignore[call-overload]
        self._origin: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, given: torch.Tensor | None, goal: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Take in inputs (tokens, columns) and what the module should say to them (tokens, rows)."""
        if self._weight is None or given is None:
            given = goal.new_zeros(len(goal), 0)
        if self._origin is None:
            # Products are of the models' precision: from near the mean, a large one takes no digits away.
            self._origin = given.mean(0), goal.mean(0)
        given, goal = given - self._origin[0], goal - self._origin[1]
        w = goal.new_ones(len(goal)) if weights is None else weights.to(goal.dtype)
        weighted = given * w[:, None]
        self._total += float(w.double().sum())
        self._goal += (w @ goal).double()
        self._given += weighted.sum(0, dtype=torch.float64)
        self._square += (weighted.mT @ given).double()
        self._cross += (goal.mT @ weighted).double()

    def solve(self, damping: float) -> None:
        """Put the solution into the model."""
        assert self._origin is not None
        given, goal = self._given / self._total, self._goal / self._total
        square = self._square / self._total - given.outer(given)
        cross = self._cross / self._total - goal.outer(given)
        given, goal = given + self._origin[0], goal + self._origin[1]
        if self._weight is None:
            self._bias.copy_(goal)
            return
        weight = self._weight.double()
        size = float(square.diagonal().mean())
        if size > 1e-10 * float(given.square().mean()):  # inputs that never change have nothing to solve from
            square.diagonal().add_(damping * size)
            residual = cross + damping * size * weight  # normal equations with the pull towards Ŵ
            weight = torch.cholesky_solve(residual.mT, torch.linalg.cholesky(square)).mT
            self._weight.copy_(weight)
        self._bias.copy_(goal - weight @ given)

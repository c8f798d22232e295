"""Candidates of the search as one model whose modules are swapped: never a copy of the model.

The smaller modules are prebuilt and kept in a bounded cache. A module's groups are arranged in reverse order
of removal, so that what any level keeps of its first matrices is a view of the same tensor. Layers before the
first one that differs from the best candidate so far are not run: their outputs are remembered.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.adapters import Adapter, Module, adapter_for
from ziplm.adapters.pieces import structure_copy
from ziplm.heads import IGNORED, Batch, Head, LanguageModel
from ziplm.tasks.base import Features, Task
from ziplm.workers import ALONE, Workers

GIBIBYTE = 2**30


class Stitcher:
    """A model that shares everything with the dense one but the modules that were swapped."""

    def __init__(
        self, model: PreTrainedModel, traces: Mapping[str, Trace], cache_bytes: int = GIBIBYTE
    ) -> None:
        self.adapter: Adapter = adapter_for(model)
        self.modules = self.adapter.modules(model)
        self.model: PreTrainedModel = structure_copy(model.eval())  # type: ignore[assignment]
        self._dense = model
        self._traces = traces
        self._own = [self.adapter.parts(model, module) for module in self.modules]
        self._reordered: dict[str, nn.Module] = {}
        self._built: OrderedDict[tuple[str, int], dict[str, nn.Module]] = OrderedDict()
        self._bytes, self._cache_bytes = 0, cache_bytes
        self.removed = [0] * len(self.modules)

    def install(self, removed: Sequence[int]) -> None:
        """Make the model the one in which each module has lost so many groups."""
        for place, (module, now, wanted) in enumerate(zip(self.modules, self.removed, removed, strict=True)):
            if now != wanted:
                parts = self._own[place] if wanted == 0 else self._parts(module, int(wanted))
                self.adapter.install(self.model, module, parts)
                self.removed[place] = int(wanted)

    def _parts(self, module: Module, removed: int) -> dict[str, nn.Module]:
        key = (module.name, removed)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        parts = self._build(module, removed)
        self._built[key] = parts
        self._bytes += self._size(module, removed)
        while self._bytes > self._cache_bytes and len(self._built) > 1:
            (name, level), _ = self._built.popitem(last=False)
            self._bytes -= self._size(next(m for m in self.modules if m.name == name), level)
        return parts

    def _build(self, module: Module, removed: int) -> dict[str, nn.Module]:
        trace = self._traces[module.name]
        if module.name not in self._reordered:
            self._reordered[module.name] = self.adapter.reordered(self._dense, module, trace)
        layer, bias = self._reordered[module.name], self.adapter.bias(self._dense, module).detach()
        arranged = trace.weight(removed)[:, _ranks(trace, removed)].to(bias)
        shifted = bias + trace.bias_shift(removed).to(bias)
        return self.adapter.leading(layer, module, module.groups - removed, arranged, shifted)

    def _size(self, module: Module, removed: int) -> int:
        """Bytes of what is not a view: the output matrix, and fused matrices at worst."""
        columns = (module.groups - removed) * module.group_size
        hidden = self.adapter.bias(self._dense, module).shape[0]
        return 4 * hidden * columns * 4


def _ranks(trace: Trace, removed: int) -> torch.Tensor:
    """Where the columns kept, arranged in reverse order of removal, are among the sorted ones."""
    groups = trace.order[removed:].flip(0)
    ranks = groups.argsort().argsort()
    offsets = torch.arange(trace.group_size, device=ranks.device)
    return (ranks[:, None] * trace.group_size + offsets).flatten()


class Evaluator:
    """The loss of candidates on fixed samples.

    Args:
        stitcher: whose model is evaluated; several evaluators may share one.
        task: whose head says how far two outputs are apart.
        features: the samples.
        loss: "kl" for the divergence from the dense model, "task" for the model's own loss on labels.
        batch_size: samples at a time.
        state_bytes: how much memory remembered states may take.
        workers: who the batches are dealt out to; all ask for the same candidates, and get the same losses.
    """

    def __init__(
        self,
        stitcher: Stitcher,
        task: Task,
        features: Sequence[Features],
        *,
        loss: str = "kl",
        batch_size: int = 32,
        state_bytes: int = GIBIBYTE,
        workers: Workers = ALONE,
    ) -> None:
        self._stitcher, self._task, self._loss, self._workers = stitcher, task, loss, workers
        batches = task.batches(features, batch_size, stitcher.model.device)
        self._batches = [batch for _, batch in workers.share(batches)]
        self._reference = self._dense_outputs()
        self._layers = stitcher.adapter.layers(stitcher.model)
        hidden = self._layers_output_bytes()
        # Two sets of states may be alive: the best candidate's, and that of the one being evaluated.
        affordable = int(state_bytes / max(1, 2 * hidden))
        self._stride = max(1, -(-len(self._layers) // affordable)) if affordable else len(self._layers) + 1
        self._best = float("inf")
        self._best_removed: list[int] = []
        self._best_states: dict[int, list[torch.Tensor]] = {}

    def _dense_outputs(self) -> list[torch.Tensor]:
        if self._loss == "task":
            return []
        self._stitcher.install([0] * len(self._stitcher.modules))
        with torch.inference_mode():
            return [self._task.head.outputs(self._stitcher.model, batch) for batch in self._batches]

    def _layers_output_bytes(self) -> int:
        bias = self._stitcher.adapter.bias(self._stitcher.model, self._stitcher.modules[0])
        tokens = sum(batch["input_ids"].numel() for batch in self._batches)
        return tokens * bias.numel() * bias.element_size()

    @torch.inference_mode()
    def __call__(self, removed: Sequence[int]) -> float:
        """The loss, a mean over samples (of a language model: over tokens), with so many groups removed."""
        self._stitcher.install(removed)
        start = self._first_to_run(removed)
        states: dict[int, list[torch.Tensor]] = {
            layer: self._best_states[layer] for layer in self._best_states if layer <= start
        }
        parts: list[tuple[float, int]] = []
        for number, batch in enumerate(self._batches):
            state = self._best_states[start][number] if start else None
            later = range(start + self._stride, len(self._layers), self._stride)
            with replayed(self._layers, start, state), _recorded(self._layers, later, states):
                parts.append(self._evaluate(number, batch))
        parts = self._workers.joined(parts)
        loss = sum(part for part, _ in parts) / sum(count for _, count in parts)
        if loss < self._best:
            self._best, self._best_removed, self._best_states = loss, [int(k) for k in removed], states
        return loss

    def _evaluate(self, number: int, batch: Batch) -> tuple[float, int]:
        model = self._stitcher.model
        if self._loss == "task":
            count = _labels_counted(self._task.head, batch)
            return (float(model(**batch).loss) * count if count else 0.0), count
        head = self._task.head
        return head.divergence(model, head.outputs(model, batch), self._reference[number], batch)

    def _first_to_run(self, removed: Sequence[int]) -> int:
        """The latest layer before which nothing differs from the best candidate, and whose input is kept."""
        changed = next(
            (
                module.layer
                for module, own, best in zip(
                    self._stitcher.modules, removed, self._best_removed, strict=False
                )
                if own != best
            ),
            0,
        )
        return max((layer for layer in self._best_states if layer <= changed), default=0)


def _labels_counted(head: Head, batch: Batch) -> int:
    """How many labels the model's own loss is a mean over."""
    labels = batch.get("labels")
    if labels is None or labels.ndim == 1:
        return len(batch["input_ids"])
    if isinstance(head, LanguageModel) and head.kind == "causal":
        labels = labels[:, 1:]  # nothing comes before a first token that could predict it
    return int((labels != IGNORED).sum())


@contextmanager
def replayed(layers: list[nn.Module], start: int, state: torch.Tensor | None) -> Iterator[None]:
    """While open, layers before `start` hand on what they get, and the last of them a remembered state."""

    def hand_on(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden

    def recall(*_: Any, **__: Any) -> torch.Tensor:
        assert state is not None
        return state

    skipped = layers[:start]
    try:
        for layer in skipped:
            layer.forward = recall if layer is skipped[-1] else hand_on
        yield
    finally:
        for layer in skipped:
            layer.__dict__.pop("forward", None)


@contextmanager
def _recorded(
    layers: list[nn.Module], wanted: Sequence[int], states: dict[int, list[torch.Tensor]]
) -> Iterator[None]:
    """While open, the inputs of some layers are appended to `states`."""

    def keep(place: int) -> Any:
        return lambda _, arguments: states.setdefault(place, []).append(arguments[0])

    with ExitStack() as stack:
        for place in wanted:
            stack.enter_context(layers[place].register_forward_pre_hook(keep(place)))
        yield

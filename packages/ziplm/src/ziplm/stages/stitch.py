"""Candidates of the search, stitched together in one model by swapping its branches.

Smaller branches are built once and kept in a bounded cache. The groups of a branch are put in reverse order
of removal, so that every size keeps the leading ones: the matrices before the output matrix are then views of
one tensor, unless q, k and v are fused. Layers before the first one that differs from the best candidate so
far are skipped: their outputs are remembered.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Branch
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import leading_parts, pruned_output, reordered_layer
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.replay import replayed
from ziplm.tasks.base import Features, Task
from ziplm.tasks.heads import Batch

GIBIBYTE = 2**30


class Stitcher:
    """A model that shares everything with the current model except for the branches that are swapped.

    Args:
        model: the current model, which is not changed.
        traces: traces by branch name.
        cache_bytes: size limit of the cache of smaller branches.
    """

    def __init__(
        self, model: PreTrainedModel, traces: Mapping[str, Trace], cache_bytes: int = GIBIBYTE
    ) -> None:
        self.architecture = architecture_of(model)
        self.branches = self.architecture.branches(model)
        self.model: PreTrainedModel = structure_copy(model.eval())  # type: ignore[assignment]
        self._current = model
        self._traces = traces
        self._unpruned = [self.architecture.parts(model, branch) for branch in self.branches]
        self._reordered: dict[str, nn.Module] = {}
        self._built: OrderedDict[tuple[str, int], dict[str, nn.Module]] = OrderedDict()
        self._bytes, self._cache_bytes = 0, cache_bytes
        self.removed = [0] * len(self.branches)

    def install(self, removed: Sequence[int]) -> None:
        """Swap branches so that each one has lost the given number of groups."""
        for index, (branch, now, wanted) in enumerate(zip(self.branches, self.removed, removed, strict=True)):
            if now != wanted:
                parts = self._unpruned[index] if wanted == 0 else self._parts(branch, int(wanted))
                self.architecture.install(self.model, branch, parts)
                self.removed[index] = int(wanted)

    def _parts(self, branch: Branch, removed: int) -> dict[str, nn.Module]:
        key = (branch.name, removed)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        parts = self._build(branch, removed)
        self._built[key] = parts
        self._bytes += self._bytes_of(branch, removed)
        while self._bytes > self._cache_bytes and len(self._built) > 1:
            (name, dropped), _ = self._built.popitem(last=False)
            self._bytes -= self._bytes_of(next(b for b in self.branches if b.name == name), dropped)
        return parts

    def _build(self, branch: Branch, removed: int) -> dict[str, nn.Module]:
        trace = self._traces[branch.name]
        if branch.name not in self._reordered:
            self._reordered[branch.name] = reordered_layer(self.architecture, self._current, branch, trace)
        layer = self._reordered[branch.name]
        weight, bias = pruned_output(self.architecture, self._current, branch, trace, removed)
        arranged = weight[:, _ranks(trace, removed).to(weight.device)]
        spec = self.architecture.spec(self._current, branch)
        return leading_parts(layer, spec, branch.groups - removed, arranged, bias)

    def _bytes_of(self, branch: Branch, removed: int) -> int:
        """Bound the bytes that a built branch adds: the output matrix, and q, k, v where they are fused."""
        columns = (branch.groups - removed) * branch.group_size
        hidden = self._current.config.hidden_size
        return 4 * hidden * columns * 4


def _ranks(trace: Trace, removed: int) -> torch.Tensor:
    """Return the positions of the kept columns, in reverse order of removal, among the sorted ones."""
    groups = trace.order[removed:].flip(0)
    ranks = groups.argsort().argsort()
    offsets = torch.arange(trace.group_size, device=ranks.device)
    return (ranks[:, None] * trace.group_size + offsets).flatten()


class CandidateLoss:
    """The loss of candidates on fixed samples, as a function of the groups removed.

    Args:
        stitcher: makes the candidates; several losses may share one.
        task: the task, whose head measures the divergence of outputs.
        features: the samples.
        loss: "kl" for the divergence from the current model, "task" for the model's own loss on labels.
        batch_size: samples per batch.
        state_bytes: memory limit of the remembered hidden states.
        workers: the processes that share the batches; all ask for the same candidates and get the same loss.
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
        self._reference = self._reference_outputs()
        self._layers = stitcher.architecture.layers(stitcher.model)
        # Only the inputs of every stride-th layer are remembered, so that they fit in `state_bytes`. Two sets
        # of states are in memory: those of the best candidate and of the one whose loss is computed.
        affordable = int(state_bytes / max(1, 2 * self._state_bytes()))
        self._stride = max(1, -(-len(self._layers) // affordable)) if affordable else len(self._layers) + 1
        self._best = float("inf")
        self._best_removed: list[int] = []
        self._best_states: dict[int, list[torch.Tensor]] = {}

    def _reference_outputs(self) -> list[torch.Tensor]:
        """Compute the outputs of the current model, which the loss refers to."""
        if self._loss == "task":
            return []
        self._stitcher.install([0] * len(self._stitcher.branches))
        with torch.inference_mode():
            return [self._task.head.outputs(self._stitcher.model, batch) for batch in self._batches]

    def _state_bytes(self) -> int:
        """Return the bytes of one layer's output over all batches."""
        model = self._stitcher.model
        tokens = sum(batch["input_ids"].numel() for batch in self._batches)
        return tokens * model.config.hidden_size * model.dtype.itemsize

    @torch.inference_mode()
    def __call__(self, removed: Sequence[int]) -> float:
        """Return the mean loss over samples (or tokens) with these numbers of groups removed."""
        self._stitcher.install(removed)
        start = self._first_to_run(removed)
        states: dict[int, list[torch.Tensor]] = {
            layer: self._best_states[layer] for layer in self._best_states if layer <= start
        }
        parts: list[tuple[float, int]] = []
        for number, batch in enumerate(self._batches):
            state = self._best_states[start][number] if start else None
            later = range(start + self._stride, len(self._layers), self._stride)
            with (
                replayed(self._stitcher.architecture, self._layers, start, state),
                _recorded(self._layers, later, states),
            ):
                parts.append(self._loss_of_batch(number, batch))
        parts = self._workers.gathered(parts)
        loss = sum(part for part, _ in parts) / sum(count for _, count in parts)
        if loss < self._best:
            self._best, self._best_removed, self._best_states = loss, [int(k) for k in removed], states
        return loss

    def _loss_of_batch(self, number: int, batch: Batch) -> tuple[float, int]:
        model = self._stitcher.model
        if self._loss == "task":
            count = self._task.head.counted_labels(batch)
            return (float(model(**batch).loss) * count if count else 0.0), count
        head = self._task.head
        return head.divergence(model, head.outputs(model, batch), self._reference[number], batch)

    def _first_to_run(self, removed: Sequence[int]) -> int:
        """Return the last layer whose input is remembered from the best candidate and still the same."""
        compared = zip(self._stitcher.branches, removed, self._best_removed, strict=False)
        changed = next((branch.layer for branch, now, best in compared if now != best), 0)
        return max((layer for layer in self._best_states if layer <= changed), default=0)


@contextmanager
def _recorded(
    layers: list[nn.Module], wanted: Sequence[int], states: dict[int, list[torch.Tensor]]
) -> Iterator[None]:
    """While open, append the inputs of the wanted layers to `states`."""

    def keep(layer: int) -> Any:
        return lambda _, arguments: states.setdefault(layer, []).append(arguments[0])

    with ExitStack() as stack:
        for layer in wanted:
            stack.enter_context(layers[layer].register_forward_pre_hook(keep(layer)))
        yield

"""Candidates of the search, stitched together in one model by swapping its branches.

Smaller branches are built once and kept in a bounded cache. The groups of a branch are put in reverse order
of removal, so that every size keeps the leading ones: the matrices before the output matrix are then views of
one tensor, unless q, k and v are fused. Layers before the first one that differs from the best candidate so
far are skipped: their outputs are remembered. A candidate that races against a rival may be given up early.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from obs_structured import Trace
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.attention_trace import BranchTrace, heads_of, narrowing
from ziplm.architectures.base import Branch, Size
from ziplm.architectures.branch_module import structure_copy
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import leading_parts, pruned_output, pruned_parts, reordered_layer
from ziplm.runs.workers import ALONE, Workers
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.race import estimated_loss, falls_behind, looks_at, spread_order
from ziplm.stages.replay import replayed
from ziplm.tasks.base import Features, Task
from ziplm.tasks.heads import Divergence, mean_divergence

GIBIBYTE = 2**30


class Stitcher:
    """A model that shares everything with the current model except for the branches that are swapped.

    Args:
        model: the current model, which is not changed.
        traces: traces by branch name.
        cache_bytes: size limit of the cache of smaller branches.
    """

    def __init__(
        self, model: PreTrainedModel, traces: Mapping[str, BranchTrace], cache_bytes: int = GIBIBYTE
    ) -> None:
        self.architecture = architecture_of(model)
        self.branches = self.architecture.branches(model)
        self.model: PreTrainedModel = structure_copy(model.eval())  # type: ignore[assignment]
        self._current = model
        self._traces = traces
        self._unpruned = [self.architecture.parts(model, branch) for branch in self.branches]
        self._reordered: dict[str, nn.Module] = {}
        self._built: OrderedDict[tuple[str, Size], dict[str, nn.Module]] = OrderedDict()
        self._bytes, self._cache_bytes = 0, cache_bytes
        self.sizes = [branch.size for branch in self.branches]

    def install(self, sizes: Sequence[Size]) -> None:
        """Swap branches so that each one has the given size."""
        for index, (branch, now, wanted) in enumerate(zip(self.branches, self.sizes, sizes, strict=True)):
            if now != wanted:
                parts = self._unpruned[index] if wanted == branch.size else self._parts(branch, wanted)
                self.architecture.install(self.model, branch, parts)
                self.sizes[index] = wanted

    def _parts(self, branch: Branch, size: Size) -> dict[str, nn.Module]:
        key = (branch.name, size)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        parts = self._build(branch, size)
        self._built[key] = parts
        self._bytes += self._bytes_of(size)
        while self._bytes > self._cache_bytes and len(self._built) > 1:
            (_, dropped), _ = self._built.popitem(last=False)
            self._bytes -= self._bytes_of(dropped)
        return parts

    def _build(self, branch: Branch, size: Size) -> dict[str, nn.Module]:
        found = self._traces[branch.name]
        if narrowing(branch, found, size) is not None:
            return pruned_parts(self.architecture, self._current, branch, found, size)
        trace = heads_of(found)
        if branch.name not in self._reordered:
            self._reordered[branch.name] = reordered_layer(self.architecture, self._current, branch, trace)
        layer = self._reordered[branch.name]
        weight, bias = pruned_output(self.architecture, self._current, branch, trace, size)
        arranged = weight[:, _ranks(trace, branch.groups - size.groups).to(weight.device)]
        spec = self.architecture.spec(self._current, branch)
        return leading_parts(layer, spec, size.groups, arranged, bias)

    def _bytes_of(self, size: Size) -> int:
        """Bound the bytes that a built branch adds: the output matrix, and q, k, v if they are no views."""
        return 4 * self._current.config.hidden_size * size.groups * size.width * 4


def _ranks(trace: Trace, removed: int) -> torch.Tensor:
    """Return the positions of the kept columns, in reverse order of removal, among the sorted ones."""
    groups = trace.order[removed:].flip(0)
    ranks = groups.argsort().argsort()
    offsets = torch.arange(trace.group_size, device=ranks.device)
    return (ranks[:, None] * trace.group_size + offsets).flatten()


class CandidateLoss:
    """The loss of candidates on fixed samples, as a function of the branches' sizes.

    Args:
        stitcher: makes the candidates; several losses may share one.
        task: the task, whose head measures the divergence of outputs.
        features: the samples.
        reference: outputs of the model that the divergence refers to; None for the current model.
        loss: "kl" for the divergence from the reference, "task" for the model's own loss on labels.
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
        reference: DenseOutputs | None = None,
        loss: str = "kl",
        batch_size: int = 32,
        state_bytes: int = GIBIBYTE,
        workers: Workers = ALONE,
    ) -> None:
        self._stitcher, self._task, self._loss, self._workers = stitcher, task, loss, workers
        batches = [batch for _, batch in task.batches(features, batch_size, stitcher.model.device)]
        order = spread_order(len(batches))
        looks = [0, *looks_at(len(batches))]
        shares = [workers.share(order[first:last]) for first, last in itertools.pairwise(looks)]
        self._batches = [batches[number] for share in shares for number in share]
        ends = [0, *itertools.accumulate(map(len, shares))]
        self._legs = [range(first, last) for first, last in itertools.pairwise(ends)]
        if reference is None:
            reference = DenseOutputs(stitcher.model, task)
            stitcher.install([branch.size for branch in stitcher.branches])
        self._reference_model = reference.model
        self._reference = [] if loss == "task" else [reference(batch) for batch in self._batches]
        self._layers = stitcher.architecture.layers(stitcher.model)
        # Only the inputs of every stride-th layer are remembered, so that they fit in `state_bytes`. Two sets
        # of states are in memory: those of the best candidate and of the one whose loss is computed.
        affordable = int(state_bytes / max(1, 2 * self._state_bytes()))
        self._stride = max(1, -(-len(self._layers) // affordable)) if affordable else len(self._layers) + 1
        self._best = float("inf")
        self._best_sizes: list[Size] = []
        self._best_parts: list[Divergence] = []
        self._best_states: dict[int, list[torch.Tensor]] = {}

    def _state_bytes(self) -> int:
        """Return the bytes of one layer's output over all batches."""
        model = self._stitcher.model
        tokens = sum(batch["input_ids"].numel() for batch in self._batches)
        return tokens * model.config.hidden_size * model.dtype.itemsize

    def __call__(self, sizes: Sequence[Size]) -> float:
        """Return the mean loss over samples (or tokens) with branches of these sizes."""
        return mean_divergence(self.parts(sizes))

    def parts(self, sizes: Sequence[Size]) -> list[Divergence]:
        """Return the loss of each batch with branches of these sizes, in an order that is always the same."""
        return self._run(sizes, [])

    def race(self, sizes_and_rival: tuple[Sequence[Size], Sequence[Size]]) -> float:
        """Return the loss of sizes or, if they fall behind a rival, an estimate that is above the rival's.

        Args:
            sizes_and_rival: sizes of the branches, and those of the rival, the best candidate so far.
        """
        sizes, rival = sizes_and_rival
        if list(rival) != self._best_sizes:  # as when a search is resumed
            self._best = float("inf")
            self(rival)
        rival_loss, rival_parts = self._best, self._best_parts
        parts = self._run(sizes, rival_parts)
        if len(parts) < len(rival_parts):
            return estimated_loss(parts, rival_parts[: len(parts)], rival_loss)
        return mean_divergence(parts)

    @torch.inference_mode()
    def _run(self, sizes: Sequence[Size], rival: Sequence[Divergence]) -> list[Divergence]:
        """Return the loss of each batch; only of the first ones if they fall behind those of a rival."""
        self._stitcher.install(sizes)
        start = self._first_to_run(sizes)
        states: dict[int, list[torch.Tensor]] = {
            layer: self._best_states[layer] for layer in self._best_states if layer <= start
        }
        later = range(start + self._stride, len(self._layers), self._stride)
        parts: list[Divergence] = []
        for leg in self._legs:
            own = []
            for number in leg:
                state = self._best_states[start][number] if start else None
                with (
                    replayed(self._stitcher.architecture, self._layers, start, state),
                    _recorded(self._layers, later, states),
                ):
                    own.append(self._loss_of_batch(number))
            parts += self._workers.gathered(own)
            if len(parts) < len(rival) and falls_behind(parts, rival[: len(parts)]):
                return parts
        loss = mean_divergence(parts)
        if loss < self._best:
            self._best, self._best_sizes, self._best_states = loss, list(sizes), states
            self._best_parts = parts
        return parts

    def _loss_of_batch(self, number: int) -> Divergence:
        model, batch, head = self._stitcher.model, self._batches[number], self._task.head
        if self._loss == "task":
            count = head.counted_labels(batch)
            return Divergence(float(model(**batch).loss) * count if count else 0.0, count)
        outputs = head.outputs(model, batch)
        return head.divergence(model, outputs, self._reference_model, self._reference[number], batch)

    def _first_to_run(self, sizes: Sequence[Size]) -> int:
        """Return the last layer whose input is remembered from the best candidate and still the same."""
        compared = zip(self._stitcher.branches, sizes, self._best_sizes, strict=False)
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

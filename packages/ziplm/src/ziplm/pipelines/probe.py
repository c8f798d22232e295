"""The probe: the time of a few samples in each kind of work, from which the time of the stages is estimated.

It runs the same functions as the stages, so that estimates follow when a stage becomes faster or slower.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from obs_structured import prune
from transformers import PreTrainedModel

from ziplm.pipelines.engine_steps import briefly_in_engine
from ziplm.pipelines.units import UnitTimes, padded_tokens
from ziplm.pipelines.values import Start
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.tasks.base import Features
from ziplm.tasks.heads import Batch, inputs_of

PART_SECONDS = 0.4  # of forward passes for each part of the probe; other parts take a few times as long
BATCH_TOKENS = 256  # of each batch, if the run's batches are not smaller: with fewer, a token takes longer
FEWEST_BATCHES, MOST_BATCHES = 2, 16
PRUNED_COLUMNS = 1024  # of the small pruning
PRIORS = 3  # that are computed from a trace
OPTIMIZED = 2**22  # parameters in the probe of the optimizer


def probe(start: Start) -> UnitTimes:
    """Measure the units of work on the machine as it is now, with a few of the samples."""
    on_cpu = start.dense.device.type == "cpu"
    now = time.process_time if on_cpu else time.perf_counter
    wall, spent = time.perf_counter(), now()
    few = _few_samples(start, start.samples.calibration, now)
    samples, batch_size, tokens = few.samples, few.batch_size, few.tokens
    forward, divergence = _forward_and_divergence(start, few, now)
    options = start.options
    trains = options.trains

    def fisher() -> object:
        widths = start.head_widths(start.dense)
        narrowed = [branch for branch in start.remaining_branches(start.dense) if branch.name in widths]
        return gather_fisher(start.dense, start.task, samples, batch_size=batch_size, narrowed=narrowed)

    def statistics() -> object:
        branches = start.remaining_branches(start.dense)
        return gather_statistics(start.dense, start.task, samples, branches, {}, batch_size=batch_size)

    times = {
        "forward": forward / tokens,
        "divergence": divergence / tokens,
        "fisher": _seconds(fisher, now) / tokens if options.gradients else 0.0,
        "statistics": _seconds(statistics, now) / tokens,
        "pruning": _pruning(start, now),
        "training": _training(start, few, now) / tokens if trains else 0.0,
        "optimizer": _optimizer(start, now) / OPTIMIZED if trains else 0.0,
        **_evaluation(start, now),
    }
    waiting = (time.perf_counter() - wall) / max(now() - spent, 1e-9)
    return UnitTimes(**times, waiting=waiting, clock="CPU time" if on_cpu else "wall time")


def _seconds(work: Callable[[], object], now: Callable[[], float]) -> float:
    begin = now()
    work()
    return now() - begin


class _Few(NamedTuple):
    """A few samples, and how many of them form a batch."""

    samples: list[Features]
    batch_size: int

    @property
    def tokens(self) -> int:
        """Number of tokens with padding."""
        return padded_tokens(self.samples, self.batch_size)

    def batches(self, start: Start, model: PreTrainedModel) -> Iterator[Batch]:
        """Yield the batches on a model's device."""
        for _, batch in start.task.batches(self.samples, self.batch_size, model.device):
            yield batch


def _few_samples(start: Start, samples: Sequence[Features], now: Callable[[], float]) -> _Few:
    """Return batches of neighbours among samples sorted by length: about `PART_SECONDS` of forward passes."""
    ordered = sorted(samples, key=lambda sample: len(sample["input_ids"]))
    usual = max(1, len(ordered[len(ordered) // 2]["input_ids"]))
    size = min(start.options.calibration_batch_size, max(1, BATCH_TOKENS // usual), len(ordered))
    first = _Few(_spread(ordered, size, 1), size)
    _forward(start, first)  # the first pass of a process takes longer
    each = max(_seconds(lambda: _forward(start, first), now), 1e-9)
    batches = int(min(MOST_BATCHES, max(FEWEST_BATCHES, PART_SECONDS / each)))
    return _Few(_spread(ordered, size, batches), size)


def _spread(ordered: Sequence[Features], size: int, batches: int) -> list[Features]:
    """Return groups of neighbours in several places; fewer groups if there are not enough samples."""
    batches = min(batches, len(ordered) // size)
    room = len(ordered) - batches * size  # between the groups
    starts = [number * size + round((2 * number + 1) * room / (2 * batches)) for number in range(batches)]
    return [ordered[start + offset] for start in starts for offset in range(size)]


@torch.inference_mode()
def _forward(start: Start, few: _Few) -> list[torch.Tensor]:
    return [start.task.head.outputs(start.dense, batch) for batch in few.batches(start, start.dense)]


@torch.inference_mode()
def _forward_and_divergence(start: Start, few: _Few, now: Callable[[], float]) -> tuple[float, float]:
    outputs: list[torch.Tensor] = []
    forward = _seconds(lambda: outputs.extend(_forward(start, few)), now)
    batches = few.batches(start, start.dense)

    def compare() -> None:
        for made, batch in zip(outputs, batches, strict=True):
            start.task.head.divergence(start.dense, made, start.dense, made, batch)

    return forward, _seconds(compare, now)


def _evaluation(start: Start, now: Callable[[], float]) -> dict[str, float]:
    """Time the evaluation of the dense model, in torch and in the engine of the run, and its export."""
    examples = [example for split in start.splits.evaluation.values() for example in split]
    few = _few_samples(start, examples, now)
    tokens = few.tokens

    @torch.inference_mode()
    def evaluate(model: PreTrainedModel) -> None:
        for batch in few.batches(start, model):
            model(**inputs_of(batch))

    times = {"evaluation": _seconds(partial(evaluate, start.dense), now) / tokens}
    if not start.setting.runs_files:
        return times | {"export": 0.0, "served": 0.0}
    begin = now()
    with briefly_in_engine(start, start.dense) as served:
        export = now() - begin
        evaluate(served)  # the first pass of a session takes longer
        return times | {
            "export": export,
            "served": _seconds(partial(evaluate, served), now) / tokens,
        }


def _pruning(start: Start, now: Callable[[], float]) -> float:
    """Prune a random matrix as high as the output matrices and compute priors."""
    widest = max((branch.columns for branch in start.remaining_branches(start.dense)), default=1)
    rows, columns = start.dense.config.hidden_size, min(widest, PRUNED_COLUMNS)
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=random)
    inputs = torch.randn(2 * columns, columns, generator=random, dtype=torch.float64)
    metric = torch.eye(rows, dtype=torch.float64)

    def work() -> None:
        trace = prune(
            weight,
            inputs.T @ inputs,
            metric=metric if start.options.gradients else None,
            count=len(inputs),
            method=start.options.selection,
            update=start.options.update,
        )
        for _ in range(PRIORS):
            trace.errors_under(metric)

    return _seconds(work, now) / (rows * columns**2)


def _training(start: Start, few: _Few, now: Callable[[], float]) -> float:
    """Run forward and backward passes in training mode; nothing of the model is changed."""
    model: PreTrainedModel = start.dense
    batches = few.batches(start, model)

    def work() -> None:
        for batch in batches:
            start.task.head.outputs(model, batch).float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    devices = [] if model.device.type == "cpu" else [model.device]
    with torch.random.fork_rng(devices, device_type=model.device.type):
        model.train(start.options.dropout is not False)
        try:
            return _seconds(work, now)
        finally:
            model.eval()


def _optimizer(start: Start, now: Callable[[], float]) -> float:
    weights = torch.nn.Parameter(torch.zeros(OPTIMIZED, device=start.dense.device))
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.AdamW([weights])
    optimizer.step()  # the first step allocates
    return _seconds(optimizer.step, now)

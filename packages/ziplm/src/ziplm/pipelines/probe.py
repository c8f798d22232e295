"""The probe: the time of a few samples in each kind of work, from which the time of the stages is estimated.

It runs the same functions as the stages, so that estimates follow when a stage becomes faster or slower.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from obs_structured import prune
from transformers import PreTrainedModel

from ziplm.pipelines.values import Start
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.tasks.base import Features

PART_SECONDS = 0.7  # of forward passes for each part of the probe; other parts take a few times as long
FEWEST_SAMPLES, MOST_SAMPLES = 4, 64
PRUNED_COLUMNS = 1024  # of the small pruning
PRIORS = 3  # that are computed from a trace
OPTIMIZED = 2**22  # parameters in the probe of the optimizer


@dataclass(frozen=True)
class UnitTimes:
    """Seconds of the units of work that stages consist of; CPU time, or wall time on other devices than CPUs.

    Attributes:
        forward: a forward pass of the dense model, for each sample.
        divergence: comparing the outputs of two models, for each sample.
        fisher: a forward and backward pass that finds the fisher, for each sample.
        statistics: a forward pass that gathers the statistics of all branches, for each sample.
        pruning: pruning a branch, for each row and square of its number of columns.
        training: a forward and backward pass of the dense model for training, for each example.
        optimizer: a step of the optimizer, for each parameter.
        waiting: wall time divided by CPU time; 1 on a quiet machine with one thread.
        clock: the clock of these times.
    """

    forward: float
    divergence: float
    fisher: float
    statistics: float
    pruning: float
    training: float
    optimizer: float
    waiting: float
    clock: str


def probe(start: Start) -> UnitTimes:
    """Measure the units of work on the machine as it is now, with a few of the calibration samples."""
    on_cpu = start.dense.device.type == "cpu"
    now = time.process_time if on_cpu else time.perf_counter
    wall, spent = time.perf_counter(), now()
    samples = _few_samples(start, now)
    forward, divergence = _forward_and_divergence(start, samples, now)
    options = start.options
    trains = options.trains

    def fisher() -> object:
        return gather_fisher(start.dense, start.task, samples, batch_size=options.calibration_batch_size)

    def statistics() -> object:
        branches = start.remaining_branches(start.dense)
        return gather_statistics(
            start.dense, start.task, samples, branches, {}, batch_size=options.calibration_batch_size
        )

    times = {
        "forward": forward / len(samples),
        "divergence": divergence / len(samples),
        "fisher": _seconds(fisher, now) / len(samples) if options.gradients else 0.0,
        "statistics": _seconds(statistics, now) / len(samples),
        "pruning": _pruning(start, now),
        "training": _training(start, samples, now) / len(samples) if trains else 0.0,
        "optimizer": _optimizer(start, now) / OPTIMIZED if trains else 0.0,
    }
    waiting = (time.perf_counter() - wall) / max(now() - spent, 1e-9)
    return UnitTimes(**times, waiting=waiting, clock="CPU time" if on_cpu else "wall time")


def _seconds(work: Callable[[], object], now: Callable[[], float]) -> float:
    begin = now()
    work()
    return now() - begin


def _few_samples(start: Start, now: Callable[[], float]) -> list[Features]:
    """Return calibration samples of all lengths, as many as forward passes take `PART_SECONDS` for."""
    ordered = sorted(start.samples.calibration, key=lambda sample: len(sample["input_ids"]))
    first = _spread(ordered, FEWEST_SAMPLES)
    _forward(start, first)  # the first pass of a process takes longer
    each = _seconds(lambda: _forward(start, first), now) / len(first)
    return _spread(ordered, int(min(MOST_SAMPLES, max(FEWEST_SAMPLES, PART_SECONDS / max(each, 1e-9)))))


def _spread(items: Sequence[Features], count: int) -> list[Features]:
    """Return up to `count` items at equal distances."""
    count = min(count, len(items))
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


@torch.inference_mode()
def _forward(start: Start, samples: Sequence[Features]) -> list[torch.Tensor]:
    batches = start.task.batches(samples, start.options.calibration_batch_size, start.dense.device)
    return [start.task.head.outputs(start.dense, batch) for _, batch in batches]


@torch.inference_mode()
def _forward_and_divergence(
    start: Start, samples: Sequence[Features], now: Callable[[], float]
) -> tuple[float, float]:
    outputs: list[torch.Tensor] = []
    forward = _seconds(lambda: outputs.extend(_forward(start, samples)), now)
    batches = start.task.batches(samples, start.options.calibration_batch_size, start.dense.device)

    def compare() -> None:
        for made, (_, batch) in zip(outputs, batches, strict=True):
            start.task.head.divergence(start.dense, made, made, batch)

    return forward, _seconds(compare, now)


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


def _training(start: Start, samples: Sequence[Features], now: Callable[[], float]) -> float:
    """Run forward and backward passes in training mode; nothing of the model is changed."""
    model: PreTrainedModel = start.dense
    batches = start.task.batches(samples, start.options.train_batch_size, model.device)

    def work() -> None:
        for _, batch in batches:
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

"""Unit times that are easy to count with, and the estimates that follow from them."""

from typing import Any

from latency_profiler import LatencyTable
from ziplm import Options
from ziplm.pipelines.common_steps import make_choices
from ziplm.pipelines.estimates import Estimates, estimate
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.units import UnitTimes
from ziplm.runs.folder import Run

UNIT = UnitTimes(
    forward=1.0,
    divergence=0.0,
    fisher=2.0,
    statistics=3.0,
    pruning=1e-3,
    training=3.0,
    optimizer=1e-6,
    evaluation=1.0,
    export=0.0,
    served=0.0,
    waiting=1.0,
    clock="CPU time",
)


def estimated(options: dict[str, Any], times: UnitTimes = UNIT, int8: float = 1.0) -> Estimates:
    """Estimate a run; `int8` is the speedup of int8 alone, by which the table's dense time is larger."""
    asked = Options(**options)
    run = Run(asked.output)
    start = load_start(asked, Run(f"{asked.output}-new"))  # the results in some tests are made up
    choices = make_choices(start, start.dense, LatencyTable.load(options["latency_table"]))
    choices.quantized_speedup = int8
    return estimate(start, run, choices, asked.targets(), times)


def tokens(options: dict[str, Any], part: str, batch_size: int | None = None) -> int:
    """Count the tokens of some samples as the task batches them, padding included."""
    start = load_start(Options(**options), Run(f"{options['output']}-new"))
    parts = {
        "calibration": start.samples.calibration,
        "search": start.samples.search,
        "judging": start.samples.judging,
        "evaluation": start.splits.evaluation["validation"],
    }
    batches = start.task.batches(parts[part], batch_size or start.options.calibration_batch_size)
    return sum(batch["input_ids"].numel() for _, batch in batches)

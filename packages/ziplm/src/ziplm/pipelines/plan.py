"""`--dry-run`: the reachable speedup, and the time, memory and disk of a run, from short measurements."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from latency_profiler import LatencyTable

from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.pipelines import common_steps
from ziplm.pipelines.cost_model import FIT_ROUNDS
from ziplm.pipelines.estimates import Estimates, estimate
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.probe import probe
from ziplm.pipelines.values import Start
from ziplm.runs.fingerprints import file_fingerprints, keep_fingerprints
from ziplm.runs.folder import Run
from ziplm.runs.forecast import duration
from ziplm.runs.opening import require_resumable, with_finished_targets
from ziplm.runs.progress import Reporter
from ziplm.runs.table import read_given_table, read_run_table
from ziplm.stages.choices import Choices
from ziplm.stages.workload import describe

ROUGH_TABLE_SECONDS = 10.0  # time limit for measuring the rough table
TRAINING_MEMORY = 4  # weights, gradients and the optimizer's two averages, each as large as the model
REMARKS = {"fit": f" (if {FIT_ROUNDS:g} models are measured for each target; it can be one to three)"}
BUSY = 1.2  # wall time over CPU time above which both are stated


def plan(options: Options, reporter: Reporter) -> str:
    """Describe what a run would do, as text. Nothing is written.

    Raises:
        ZipLMError: if a target cannot be reached, or the data cannot be read.
    """
    run = Run(options.output, reporter=reporter)
    require_resumable(run, options)
    keep_fingerprints(run, file_fingerprints(options))  # compares; only a run that is open writes them
    targets = options.targets()
    start = load_start(options, run)
    dense_choices, estimates = estimate_run(start, run, with_finished_targets(run, options).targets())
    samples = start.samples
    used = (
        f"{len(samples.calibration)} to calibrate, {len(samples.search)} to search, "
        f"{len(samples.judging)} to judge"
    )
    longest = min(options.data_length, start.dense.config.max_position_embeddings)
    parameters = sum(parameter.numel() for parameter in start.dense.parameters())
    names = ", ".join(target.name + (" (done)" if run.is_done(target.name) else "") for target in targets)
    columns = [branch.columns for branch in start.remaining_branches(start.dense)]
    lines = [
        f"model: {parameters:,} parameters, {len(columns)} branches to prune",
        f"data: {len(start.splits.train):,} examples of at most {longest} tokens; {used}",
        f"measured: {describe(start.setting)}",
        *dense_choices.reach_lines(),
        f"targets: {names}",
        *time_lines(estimates),
        f"memory: about {_memory(start, columns) / 2**30:.1f} GiB",
        f"disk: about {_disk(start, columns, len(targets)) / 2**30:.1f} GiB",
    ]
    return "\n".join(lines)


def estimate_run(start: Start, run: Run, targets: Sequence[Target]) -> tuple[Choices, Estimates]:
    """Return the choices of the dense model, by a rough latency table, and the time of all stages.

    Raises:
        UnreachableTarget: if a target cannot be reached.
    """
    table, profile = _rough_table(start, run)
    dense_choices = common_steps.make_choices(start, start.dense, table)
    common_steps.require_reachable(dense_choices, targets)
    with run.reporter.stage("estimating the time"):
        times = probe(start)
    return dense_choices, estimate(start, run, dense_choices, targets, times, profile)


def _rough_table(start: Start, run: Run) -> tuple[LatencyTable, float]:
    """Return the run's own table, a given one, or a rough one that is not kept, and the time of the profile.

    A profile prepares branches of every size, which an engine exports, and then measures until it is precise
    or reaches its time limit. If a rough one did not need all of its time, it is precise. Otherwise the
    profile is taken to need its whole limit, at the rate of CPU time to wall time that the rough one had.
    """
    if run.latency_file.exists():
        return common_steps.checked_table(read_run_table(run.latency_file), start), 0.0
    if start.options.latency_table is not None:
        return common_steps.checked_table(read_given_table(start.options.latency_table), start), 0.0
    limit = min(ROUGH_TABLE_SECONDS, start.options.profile_seconds)
    times = [_Times.now()]  # at the beginning, after each round, and at the end
    with run.reporter.stage("measuring roughly") as advance:

        def note(done: float, total: float) -> None:
            times.append(_Times.now())
            advance(done, total)

        table = common_steps.measured_table(start, limit, note)
    times.append(_Times.now())
    rounds = times[1:-1]
    wall, cpu = rounds[-1].wall - rounds[0].wall, rounds[-1].cpu - rounds[0].cpu
    one_round = wall / max(1, len(rounds) - 1)
    more = start.options.profile_seconds - limit if wall + one_round >= limit else 0.0
    if start.setting.quantize is not None:  # int8 alone is measured for a quarter of the time
        more *= 1.25
    return table, times[-1].cpu - times[0].cpu + more * min(1.0, cpu / wall if wall else 1.0)


class _Times(NamedTuple):
    """A moment, on two clocks."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "_Times":
        return cls(time.perf_counter(), time.process_time())


def time_lines(estimates: Estimates) -> list[str]:
    """Return the time of each stage with all targets added up, and the total."""
    stages = {stage: seconds for stage, seconds in estimates.by_stage().items() if seconds}
    total = f"  total: {duration(estimates.total)}"
    if estimates.clock == "CPU time" and estimates.waiting > BUSY:
        wall = duration(estimates.total * estimates.waiting)
        total += f"; about {wall} by the clock if the machine stays as busy as now"
    return [
        f"estimated {estimates.clock}{' of all threads' if estimates.clock == 'CPU time' else ''}:",
        *(f"  {stage}: {duration(seconds)}{REMARKS.get(stage, '')}" for stage, seconds in stages.items()),
        total,
    ]


def _model_bytes(start: Start) -> int:
    return sum(p.numel() * p.element_size() for p in start.dense.parameters())


def _trace_bytes(start: Start, columns: Sequence[int]) -> list[int]:
    return [count * count * 4 + count * 8 * start.dense.config.hidden_size for count in columns]


def _memory(start: Start, columns: Sequence[int]) -> float:
    """Estimate the memory that the stages need at once, in bytes."""
    hessians = [count * count * 8 for count in columns]
    moments = min(start.options.memory_gb * 2**30, sum(hessians))
    # Two models; Hessians and the working copies of the largest; one trace, which may be held twice.
    memory = 2 * _model_bytes(start) + moments + 4 * max(hessians, default=0)
    memory += 2 * max(_trace_bytes(start, columns), default=0)
    if start.options.trains:
        memory += TRAINING_MEMORY * _model_bytes(start)
    return memory


def _disk(start: Start, columns: Sequence[int], members: int) -> float:
    """Estimate the size of the run folder, in bytes."""
    disk = sum(_trace_bytes(start, columns)) + members * _model_bytes(start)
    if start.options.trains:
        disk += 2 * TRAINING_MEMORY * _model_bytes(start)  # two checkpoints of a training
    return disk

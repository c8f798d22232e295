"""`--dry-run`: the reachable speedup, and the time and memory of a run, from a rough latency table."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from latency_profiler import LatencyTable

from ziplm.architectures.registry import positions_of
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.pipelines import common_steps
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.values import Start
from ziplm.runs.fingerprints import file_fingerprints, keep_fingerprints
from ziplm.runs.folder import Run
from ziplm.runs.opening import require_resumable
from ziplm.runs.progress import Reporter
from ziplm.runs.table import read_given_table, read_run_table
from ziplm.stages.refit import MOST_SAMPLES
from ziplm.stages.workload import describe, random_tokens

ROUGH_TABLE_SECONDS = 10.0  # time limit for measuring the rough table
PRUNING_FLOPS = 1e10  # per second, in float64 on one core; a cautious guess
BACKWARD_COST = 3.0  # time of a forward and backward pass, in forward passes
TRAINING_MEMORY = 4  # weights, gradients and the optimizer's two averages, each as large as the model
SEARCH_SHARE = 0.5  # time of evaluating a candidate, in forward passes of the dense model
MEASUREMENTS = 5  # for each target: three fit rounds, the final one, and a margin


@dataclass(frozen=True)
class _Facts:
    """Facts from which the estimates are computed.

    Attributes:
        start: what the run starts from.
        run: the run, which may hold results already.
        targets: all targets.
        columns: columns of the output matrix of each branch that can be pruned, by branch name.
        forward: seconds of a forward pass of the dense model over one sample.
    """

    start: Start
    run: Run
    targets: Sequence[Target]
    columns: dict[str, int]
    forward: float

    @property
    def todo(self) -> list[Target]:
        """Targets that are not finished."""
        return [target for target in self.targets if not self.run.is_done(target.name)]

    @property
    def to_prune(self) -> dict[str, int]:
        """Columns of the branches that have no trace yet."""
        traced = {name for name in self.columns if self.run.trace_file(name).exists()}
        return {name: columns for name, columns in self.columns.items() if name not in traced}


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
    table = _rough_table(start, run)
    dense_choices = common_steps.make_choices(start, start.dense, table)
    common_steps.require_reachable(dense_choices, targets)
    columns = {branch.name: branch.columns for branch in start.remaining_branches(start.dense)}
    facts = _Facts(start, run, targets, columns, _seconds_per_sample(start))
    samples = start.samples
    used = (
        f"{len(samples.calibration)} to calibrate, {len(samples.search)} to search, "
        f"{len(samples.judging)} to judge"
    )
    longest = min(options.data_length, positions_of(start.dense.config))
    parameters = sum(parameter.numel() for parameter in start.dense.parameters())
    most, fixed = dense_choices.largest_speedup, table.fixed / dense_choices.dense_seconds
    done = {target.name for target in targets} - {target.name for target in facts.todo}
    names = ", ".join(target.name + (" (done)" if target.name in done else "") for target in targets)
    lines = [
        f"model: {parameters:,} parameters, {len(columns)} branches to prune",
        f"data: {len(start.splits.train):,} examples of at most {longest} tokens; {used}",
        f"measured: {describe(start.setting)}",
        f"dense model: {1e3 * dense_choices.dense_seconds:.3g} ms",
        f"reachable: up to {most:.1f}x; {fixed:.0%} of the time is outside of what can be pruned",
        f"targets: {names}",
        *_time_lines(facts),
        f"memory: about {_memory(facts) / 2**30:.1f} GiB",
        f"disk: about {_disk(facts) / 2**30:.1f} GiB",
    ]
    return "\n".join(lines)


def _rough_table(start: Start, run: Run) -> LatencyTable:
    """Return the run's own table, a given one, or a rough one that is not kept."""
    if run.latency_file.exists():
        return common_steps.checked_table(read_run_table(run.latency_file), start)
    if start.options.latency_table is not None:
        return common_steps.checked_table(read_given_table(start.options.latency_table), start)
    with run.reporter.stage("measuring roughly") as advance:
        return common_steps.measured_table(start, ROUGH_TABLE_SECONDS, advance)


def _time_lines(facts: _Facts) -> list[str]:
    once, per_target = _seconds_once(facts), _seconds_per_target(facts)
    if facts.start.options.mode == "gradual":  # each target is calibrated and pruned anew
        per_target |= {stage: once.pop(stage) for stage in ("calibrate", "prune")}
    todo = len(facts.todo)
    return [
        "estimated time:",
        *(f"  {stage}: {duration(value) if value else 'done'}" for stage, value in once.items()),
        *(f"  {stage}: {duration(value)} for each target" for stage, value in per_target.items()),
        f"  total: {duration(sum(once.values()) + todo * sum(per_target.values()))}",
    ]


def duration(seconds: float) -> str:
    """Format a time as ``45 s``, ``12 min`` or ``2 h 6 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _seconds_once(facts: _Facts) -> dict[str, float]:
    """Estimate the seconds of the stages that all targets share."""
    options = facts.start.options
    passes = (BACKWARD_COST if options.gradients else 0.0) + 1
    seconds: dict[str, float] = {}
    if not options.latency_table:
        seconds["profile"] = 0.0 if facts.run.latency_file.exists() else options.profile_seconds
    calibration = len(facts.start.samples.calibration)
    seconds["calibrate"] = passes * calibration * facts.forward if facts.to_prune else 0.0
    seconds["prune"] = sum(4 * columns**3 for columns in facts.to_prune.values()) / PRUNING_FLOPS
    if options.trains_dense:
        seen = _examples_seen(facts, options.dense_epochs, options.dense_steps)
        seconds["fine-tune the dense model"] = BACKWARD_COST * seen * facts.forward
    return seconds


def _seconds_per_target(facts: _Facts) -> dict[str, float]:
    """Estimate the seconds of the stages of one target."""
    options, start = facts.start.options, facts.start
    refitted = min(len(start.samples.calibration), MOST_SAMPLES) if options.refit else 0
    seconds = {
        "search": options.evaluations * len(start.samples.search) * facts.forward * SEARCH_SHARE,
        "fit and measure": 0.0 if options.latency_table else MEASUREMENTS * options.measure_seconds,
        "refit": 2.0 * refitted * facts.forward,
        "evaluate": sum(map(len, start.splits.evaluation.values())) * facts.forward,
    }
    if options.mode == "gradual":
        seen = _examples_seen(facts, options.epochs_per_step, options.steps_per_target)
        seconds["fine-tune"] = (BACKWARD_COST + 1) * seen * facts.forward  # and the teacher's forward pass
    return seconds


def _examples_seen(facts: _Facts, epochs: float, steps: int) -> float:
    """Return the number of examples of a training, by its steps if they are given."""
    options = facts.start.options
    batch = options.train_batch_size * options.gradient_accumulation
    return float(steps * batch) if steps > 0 else epochs * len(facts.start.splits.train)


def _model_bytes(facts: _Facts) -> int:
    return sum(p.numel() * p.element_size() for p in facts.start.dense.parameters())


def _trace_bytes(facts: _Facts) -> list[int]:
    hidden = facts.start.dense.config.hidden_size
    return [columns * columns * 4 + columns * 8 * hidden for columns in facts.columns.values()]


def _memory(facts: _Facts) -> float:
    """Estimate the memory that the stages need at once, in bytes."""
    hessians = [columns * columns * 8 for columns in facts.columns.values()]
    moments = min(facts.start.options.memory_gb * 2**30, sum(hessians))
    # Two models; Hessians and the working copies of the largest; one trace, which may be held twice.
    memory = 2 * _model_bytes(facts) + moments + 4 * max(hessians, default=0)
    memory += 2 * max(_trace_bytes(facts), default=0)
    if facts.start.options.mode == "gradual":
        memory += TRAINING_MEMORY * _model_bytes(facts)
    return memory


def _disk(facts: _Facts) -> float:
    """Estimate the size of the run folder, in bytes."""
    disk = sum(_trace_bytes(facts)) + len(facts.targets) * _model_bytes(facts)
    if facts.start.options.mode == "gradual":
        disk += 2 * TRAINING_MEMORY * _model_bytes(facts)  # two checkpoints of a training
    return disk


def _seconds_per_sample(start: Start) -> float:
    """Time a forward pass of the dense model over samples of average length; return seconds per sample."""
    lengths = [len(sample["input_ids"]) for sample in start.samples.calibration]
    usual = max(1, sum(lengths) // len(lengths))
    tokens = random_tokens([start.dense], start.setting, usual)
    with torch.inference_mode():
        start.dense(tokens)
        begin = time.perf_counter()
        start.dense(tokens)
        return (time.perf_counter() - begin) / len(tokens)

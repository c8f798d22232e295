"""`--dry-run`: what can be reached, and what it would take, from a few seconds of measuring."""

import time

import torch

from ziplm.benchmarking import random_tokens
from ziplm.config import Config
from ziplm.pipeline import Pipeline
from ziplm.progress import Reporter
from ziplm.run import Run, require_same
from ziplm.targets import targets_of

QUICK = 10.0  # seconds for a coarse latency table
FLOPS = 1e10  # of pruning in float64 on one core; a guess on the safe side
BACKWARD = 3.0  # a forward and backward pass, in forward passes
TRAINING = 4  # weights, gradients and the optimizer's two averages, in models


def plan(config: Config, reporter: Reporter) -> str:
    """What a run would do, as text. Nothing is written.

    Raises:
        ZipLMError: if a target cannot be reached, or the data cannot be read.
    """
    run = Run(config.output)
    require_same(run, config)
    targets = targets_of(config)
    pipeline = Pipeline(config, run, reporter)
    pipeline.check()
    choices = pipeline.quick_choices(QUICK)
    for target in targets:
        if target.kind != "recover":
            choices.require_reachable(target.budgets(choices), f"target {target.name}")
    forward = _seconds_per_sample(pipeline)
    calibration, search = len(pipeline.parts[0]), len(pipeline.parts[1])
    columns = [(m.groups * m.group_size, m) for m in pipeline.modules]
    traces_done = sum(run.trace_file(module.name).exists() for _, module in columns)
    seconds = {
        "profile": 0.0 if run.latency_file.exists() else config.profile_seconds,
        "calibrate": 0.0
        if traces_done == len(columns)
        else ((BACKWARD if config.gradients else 0.0) + 1) * calibration * forward,
        "prune": sum(4 * d**3 for d, m in columns if not run.trace_file(m.name).exists()) / FLOPS,
    }
    if config.latency_table:
        del seconds["profile"]
    todo = [target for target in targets if not run.is_done(target.name)]
    examples = len(pipeline.splits.train)
    per_target = {
        "search": config.evaluations * search * forward * 0.5,
        "fit and measure": 0.0 if config.latency_table else 5 * config.measure_seconds,
        "refit": 2.0 * min(calibration, 1024) * forward if config.refit else 0.0,
        "evaluate": sum(map(len, pipeline.splits.evaluation.values())) * forward,
    }
    if config.mode == "gradual":  # each target is calibrated and pruned anew, and has a teacher
        seen = _examples_seen(config, examples, config.epochs_per_step, config.steps_per_target)
        per_target["fine-tune"] = (BACKWARD + 1) * seen * forward
        per_target |= {stage: seconds.pop(stage) for stage in ("calibrate", "prune")}
        if config.trains_dense:
            dense = _examples_seen(config, examples, config.dense_epochs, config.dense_steps)
            seconds["fine-tune the dense model"] = BACKWARD * dense * forward
    model_bytes = sum(p.numel() * p.element_size() for p in pipeline.model.parameters())
    traces = [d * d * 4 + d * 8 * pipeline.model.config.hidden_size for d, _ in columns]
    trace = max(traces, default=0)  # one at a time is in memory
    moments = min(config.memory_gb * 2**30, sum(d * d * 8 for d, _ in columns))
    largest = max((d * d * 8 for d, _ in columns), default=0)
    parameters = sum(p.numel() for p in pipeline.model.parameters())
    memory = 2 * model_bytes + moments + 4 * largest + 2 * trace
    disk = sum(traces) + len(targets) * model_bytes
    if config.mode == "gradual":
        memory += TRAINING * model_bytes
        disk += 2 * TRAINING * model_bytes  # two checkpoints of a training
    most, fixed = choices.largest_speedup, choices.table.fixed / choices.dense_seconds
    lines = [
        f"model: {parameters:,} parameters, {len(columns)} modules to prune",
        f"data: {len(pipeline.splits.train):,} examples; {calibration} + {search} + {search} are used",
        f"reachable: up to {most:.1f}x; {fixed:.0%} of the time is outside of what can be pruned",
        f"targets: {', '.join(t.name + ('' if t in todo else ' (done)') for t in targets)}",
        "about this many seconds, one stage after the other:",
        *(f"  {stage}: {value:.0f}" + (" (done)" if not value else "") for stage, value in seconds.items()),
        *(f"  {stage}: {value:.0f} for each of {len(todo)} targets" for stage, value in per_target.items()),
        f"  together: {sum(seconds.values()) + len(todo) * sum(per_target.values()):.0f}",
        f"memory: about {memory / 2**30:.1f} GiB",
        f"disk: about {disk / 2**30:.1f} GiB",
    ]
    return "\n".join(lines)


def _examples_seen(config: Config, examples: int, epochs: float, steps: int) -> float:
    """Examples of a training, by its steps if they are given."""
    batch = config.train_batch_size * config.gradient_accumulation
    return float(steps * batch) if steps > 0 else epochs * examples


def _seconds_per_sample(pipeline: Pipeline) -> float:
    """Of a forward pass of the dense model over one sample of usual length."""
    lengths = [len(sample["input_ids"]) for sample in pipeline.parts[0]]
    usual = max(1, sum(lengths) // len(lengths))
    tokens = random_tokens([pipeline.model], pipeline.config.setting, usual)
    with torch.inference_mode():
        pipeline.model(tokens)
        start = time.perf_counter()
        pipeline.model(tokens)
        return (time.perf_counter() - start) / len(tokens)

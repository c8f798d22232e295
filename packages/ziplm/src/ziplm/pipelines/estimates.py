"""Estimates of the time that the stages of a run take, from the unit times of a probe.

The estimates count the passes over samples, the columns that are pruned and the rounds of measurements. A
model that is s times as fast as the dense model is taken to need 1/s of its time everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziplm.options.targets import Target
from ziplm.pipelines.probe import UnitTimes, probe
from ziplm.pipelines.recover import STEPS
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.runs.forecast import Forecast, duration
from ziplm.stages.choices import SECONDS, Choices
from ziplm.stages.prune import in_chunks
from ziplm.stages.refit import MOST_SAMPLES

# What the probe does not measure.
SMALL_PASSES = 3  # forward passes of the small model in a refit
FIT_MEASUREMENTS = 2.5  # there are one to four
ROUNDS, WARM_UP = 120, 8  # rounds of a measurement, unless its time limit comes first, and before them
UNKNOWN_SPEEDUP = 2.0  # of a target that states no speed
ATTEMPTS = 2  # finished models of a recover target, usually


@dataclass(frozen=True)
class Estimates:
    """Estimated seconds of the stages that are still to do.

    Attributes:
        once: seconds of the stages that all targets share, by name.
        targets: seconds of the stages of each unfinished target, by names of target and stage.
        clock: the clock of all seconds.
        waiting: wall time divided by that time, on the machine as it was when it was probed.
    """

    once: dict[str, float]
    targets: dict[str, dict[str, float]]
    clock: str
    waiting: float

    @property
    def total(self) -> float:
        """Seconds of the whole rest of the run."""
        return math.fsum([*self.once.values(), *(sum(each.values()) for each in self.targets.values())])

    def by_stage(self) -> dict[str, float]:
        """Return the seconds of each stage, with all targets added up."""
        stages = dict(self.once)
        for each in self.targets.values():
            for stage, seconds in each.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        return stages


def estimate(
    start: Start,
    run: Run,
    dense_choices: Choices,
    targets: Sequence[Target],
    times: UnitTimes,
    profile: float = 0.0,
) -> Estimates:
    """Estimate the time of what is still to do.

    Args:
        start: what the run starts from.
        run: the run, which may hold results already.
        dense_choices: choices of the dense model.
        targets: the targets; finished ones take no time.
        times: the unit times.
        profile: seconds of the profile.
    """
    model = _Model(start, run, dense_choices, times)
    todo = [target for target in targets if not run.is_done(target.name)]
    once = {"profile": profile} | model.dense_training()
    each: dict[str, dict[str, float]] = {}
    current = 1.0  # speedup of the current model
    for target in sorted(todo, key=model.speedup) if start.options.mode == "gradual" else todo:
        stages: dict[str, float] = {}
        if start.options.mode == "gradual":
            stages, current = model.pruning(run, current), model.speedup(target)
        each[target.name] = stages | model.target(target)
    if todo and start.options.mode != "gradual":
        once |= model.pruning(run, 1.0)
    if todo and not run.dense_predictions_file.exists():  # with the first target
        next(iter(each.values()))["evaluate"] += model.evaluation(1.0)
    return Estimates(once, each, times.clock, times.waiting)


def forecast(start: Start, dense_choices: Choices, targets: Sequence[Target], run: Run) -> None:
    """Probe the machine and give the run a forecast, if its reporter shows one; the first process probes."""
    if getattr(run.reporter, "shows_overall", False):
        with run.reporter.stage("estimating the time"):
            estimates = estimate(start, run, dense_choices, targets, probe(start))
        run.forecast = Forecast(estimates.once, estimates.targets, estimates.waiting)
        run.detail(f"estimated time: {duration(run.forecast.total)}")


class _Model:
    """The cost model: what each stage consists of."""

    def __init__(self, start: Start, run: Run, dense_choices: Choices, times: UnitTimes) -> None:
        self._start, self._run, self._choices, self._times = start, run, dense_choices, times
        self._options = start.options

    def speedup(self, target: Target) -> float:
        """Return the speedup that a target asks for."""
        seconds = self._choices.budgets(target).get(SECONDS, 0.0)
        return self._choices.dense_seconds / seconds if seconds else UNKNOWN_SPEEDUP

    def pruning(self, run: Run, current: float) -> dict[str, float]:
        """Estimate calibration and pruning of a current model of that speedup."""
        times, samples = self._times, self._start.samples
        branches = [
            branch
            for branch in self._start.remaining_branches(self._start.dense)
            if not run.trace_file(branch.name).exists()
        ]
        if not branches:
            return {"calibrate": 0.0, "prune": 0.0}
        passes = len(in_chunks(branches, int(self._options.memory_gb * 2**30)))
        inputs = times.statistics + (passes - 1) * times.forward
        fisher = 0.0 if run.fisher_file.exists() or not self._options.gradients else times.fisher
        rows = self._start.dense.config.hidden_size
        prune = times.pruning * rows * sum((branch.columns / current) ** 2 for branch in branches)
        if self._options.gradients and self._start.task.head.pooled:  # the exact prior
            prune += 2 * times.fisher * len(samples.not_calibrated) / current
        return {"calibrate": (fisher + inputs) * len(samples.calibration) / current, "prune": prune}

    def target(self, target: Target) -> dict[str, float]:
        """Estimate the stages of one target."""
        speedup, state = self.speedup(target), self._run.target_state(target.name)
        stages = {
            "search": self._search(speedup),
            "fit": FIT_MEASUREMENTS * self._measurement(speedup),
            "refit": self._refit(speedup),
            "measure": self._measurement(speedup),
            "evaluate": self.evaluation(speedup),
        }
        if self._options.trains:
            stages["finetune"] = self._finetuning(
                speedup, self._options.epochs_per_step, self._options.steps_per_target
            )
            if self._options.train_minutes is not None:
                stages["finetune"] = 60 * self._options.train_minutes
        if target.kind == "recover":
            stages = {stage: ATTEMPTS * seconds for stage, seconds in stages.items()}
            stages["evaluate"] += STEPS * self.evaluation(speedup)
        return {stage: seconds for stage, seconds in stages.items() if not _is_stored(state, stage)}

    def _search(self, speedup: float) -> float:
        times, samples = self._times, self._start.samples
        # Layers before the first change are not run again, which makes up for putting a candidate together.
        candidate = times.forward / speedup + times.divergence
        candidates = 3 + (0 if self._options.search == "prior" else self._options.evaluations)  # 3 priors
        on_search = candidates * candidate + times.forward  # the outputs to compare with
        on_judging = 2 * candidate + times.forward
        return on_search * len(samples.search) + on_judging * len(samples.judging)

    def _measurement(self, speedup: float) -> float:
        if self._options.latency_table is not None:
            return 0.0
        one_round = (1 + 1 / speedup) * self._choices.dense_seconds * len(self._start.setting.lengths)
        limit = self._options.measure_seconds / max(1.0, self._times.waiting)
        return min(ROUNDS * one_round, limit) + WARM_UP * one_round

    def _refit(self, speedup: float) -> float:
        if not self._options.refit:
            return 0.0
        times, samples = self._times, self._start.samples
        sums = times.statistics - times.forward
        fitting = times.forward + (SMALL_PASSES * times.forward + sums) / speedup
        comparing = 2 * self._comparison(speedup)  # before and after
        return fitting * min(len(samples.calibration), MOST_SAMPLES) + comparing * len(samples.not_calibrated)

    def _comparison(self, speedup: float) -> float:
        """Return the seconds of comparing a model with another, for each sample."""
        return self._times.forward * (1 + 1 / speedup) + self._times.divergence

    def evaluation(self, speedup: float) -> float:
        """Estimate the evaluation of one model, and its comparison with the dense one for the report."""
        examples = sum(map(len, self._start.splits.evaluation.values()))
        own = examples * (self._times.forward / speedup + self._times.divergence)
        if speedup == 1:  # the dense model itself
            return own
        return own + len(self._start.samples.judging) * self._comparison(speedup)

    def dense_training(self) -> dict[str, float]:
        """Estimate the fine-tuning of the dense model, if there is one to do."""
        options = self._options
        if not options.trains_dense or (self._run.dense_folder / "config.json").exists():
            return {}
        return {"finetune": self._finetuning(1.0, options.dense_epochs, options.dense_steps, teacher=0.0)}

    def _finetuning(self, speedup: float, epochs: float, steps: int, teacher: float = 1.0) -> float:
        batch = self._options.train_batch_size * self._options.gradient_accumulation
        examples = steps * batch if steps > 0 else epochs * len(self._start.splits.train)
        parameters = sum(parameter.numel() for parameter in self._start.dense.parameters())
        each = self._times.training / speedup + teacher * self._times.forward
        return examples * each + examples / batch * parameters * self._times.optimizer


STORED: Mapping[str, str] = {"search": "found.json", "fit": "fitted.json", "measure": "measured.json"}


def _is_stored(state: Path, stage: str) -> bool:
    """Return whether a target has the result of a stage already."""
    return stage in STORED and (state / STORED[stage]).exists()

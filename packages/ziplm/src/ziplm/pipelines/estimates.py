"""Estimates of the time that the rest of a run takes, stage by stage and target by target."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziplm.options.targets import Target
from ziplm.pipelines.cost_model import CostModel
from ziplm.pipelines.probe import probe
from ziplm.pipelines.units import UnitTimes
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.runs.forecast import Forecast, duration
from ziplm.stages.choices import Choices


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
        targets: the targets; finished ones take no time, but others of a gradual run start from them.
        times: the unit times.
        profile: seconds of the profile.
    """
    model = CostModel(start, run, dense_choices, times)
    once = {"profile": profile} | model.dense_training()
    each: dict[str, dict[str, float]] = {}
    gradual = start.options.mode == "gradual"
    speedup, previous = 1.0, "dense"  # of the current model
    for target in dense_choices.slowest_first(targets) if gradual else targets:
        if not run.is_done(target.name):
            step = run.for_target(target.name, previous) if gradual else run
            stages = model.pruning(step, speedup) if gradual else {}
            stages |= model.target(target)
            if gradual or not each:  # in other modes, samples are drawn once
                stages["search"] += model.dense_outputs()
            each[target.name] = _to_do(stages, step.target_state(target.name))
        speedup, previous = model.speedup(target), target.name
    if each and not gradual:
        once |= model.pruning(run, 1.0)
    if each:  # what is done once comes with the first target
        first = next(iter(each.values()))
        if "fit" in first:
            first["fit"] += model.dense_export()
        if not run.dense_predictions_file.exists():
            first["evaluate"] += model.dense_evaluation()
    return Estimates(once, each, times.clock, times.waiting)


def forecast(start: Start, dense_choices: Choices, targets: Sequence[Target], run: Run) -> None:
    """Probe the machine and give the run a forecast, if its reporter shows one; the first process probes."""
    if getattr(run.reporter, "shows_overall", False):
        with run.reporter.stage("estimating the time"):
            estimates = estimate(start, run, dense_choices, targets, probe(start))
        run.forecast = Forecast(estimates.once, estimates.targets, estimates.waiting)
        run.detail(f"estimated time: {duration(run.forecast.total)}")


STORED: Mapping[str, str] = {"search": "found.json", "fit": "fitted.json", "measure": "measured.json"}


def _to_do(stages: Mapping[str, float], state: Path) -> dict[str, float]:
    """Return the stages of a target without those whose result it has already."""
    return {
        stage: seconds
        for stage, seconds in stages.items()
        if stage not in STORED or not (state / STORED[stage]).exists()
    }

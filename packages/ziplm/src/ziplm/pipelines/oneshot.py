"""One-shot compression: every target is made from the dense model, without training.

The flow, in which each line is a stage whose result is stored in the run folder:

    load ─► profile ─► calibrate ─► prune ─► priors            once for all targets
    search ─► fit ─► shrink ─► refit ─► evaluate ─► save       for each target
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from latency_profiler import LatencyTable
from transformers import PreTrainedModel

from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.pipelines import common_steps as common
from ziplm.pipelines import target_steps as each
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recover import fastest_that_recovers
from ziplm.pipelines.report import report_of
from ziplm.pipelines.values import Pruned, Samples, Start
from ziplm.runs.folder import Run
from ziplm.stages.choices import Choices
from ziplm.stages.priors import prior_names_for

Finetune = Callable[[PreTrainedModel], dict[str, Any]]
"""Trains a shrunk model in place, and returns a summary."""


class Candidate(NamedTuple):
    """A finished model with its report."""

    model: PreTrainedModel
    report: dict[str, Any]


def compress_oneshot(options: Options, targets: Sequence[Target], run: Run) -> None:
    """Make a member of the family for each target."""
    start = load_start(options, run)
    table = common.profile(start, run)
    reach = common.make_choices(start, start.dense, table)
    common.require_reachable(reach, targets)
    pruned = prune_model(start, start.dense, table, start.samples, options.seed, run)
    for target in targets:
        run.reporter.note(f"target {target.name}")
        candidate = make_candidate(start, reach, pruned, target, run)
        each.save_member(start, candidate.model, candidate.report, run.member_folder(target.name), run)


def prune_model(
    start: Start, current: PreTrainedModel, table: LatencyTable, samples: Samples, seed: int, run: Run
) -> Pruned:
    """Calibrate and prune the current model: everything that its targets share."""
    fisher = common.calibrate(start, current, samples, seed, run)
    traces = common.prune(start, current, samples, fisher, run)
    priors = common.gather_priors(start, current, samples, traces, seed, run)
    choices = common.make_choices(start, current, table, priors)
    chosen = start.options.prior
    prior_names = prior_names_for(priors) if chosen == "auto" else [chosen]
    return Pruned(current, samples, seed, fisher, traces, choices, prior_names)


def make_candidate(start: Start, reach: Choices, pruned: Pruned, target: Target, run: Run) -> Candidate:
    """Make the model for a target of any kind."""
    state = run.target_state(target.name)
    if target.kind != "recover":
        return build_candidate(start, reach, pruned, target, target, state, run)
    guess = each.guess_speedup(start, pruned, target, run)

    def build(number: int, speedup: float) -> Candidate:
        aim = Target("speedup", speedup, target.limits)
        return build_candidate(start, reach, pruned, target, aim, state / f"attempt{number}", run)

    found = fastest_that_recovers(guess, reach.largest_speedup, start.task.greater_is_better, build)
    if not found.report["recover"]["kept"]:
        run.reporter.note(f"target {target.name} is missed: {guess['wanted']:.4g} was wanted")
    return found


def build_candidate(
    start: Start,
    reach: Choices,
    pruned: Pruned,
    target: Target,
    aim: Target,
    state: Path,
    run: Run,
    finetune: Finetune | None = None,
) -> Candidate:
    """Make the model for a speed or size.

    Args:
        start: what the run starts from.
        reach: choices of the dense model.
        pruned: the pruned current model.
        target: the target, which names the result.
        aim: the speed or size to meet. It is the target itself, unless that is a share of the metric.
        state: folder for intermediate results.
        run: the run.
        finetune: trains the model before it is evaluated; None in one-shot runs.
    """
    budgets = pruned.choices.budgets(aim, reach)
    found = each.search(start, pruned, budgets, state, run)
    fitted = each.fit(start, pruned, found, budgets, aim.kind == "latency", state, run)
    shrunk = each.shrink_to(pruned, fitted["levels"])
    small, refitted = each.refit_if_better(start, pruned, shrunk, run)
    training = None if finetune is None else finetune(small)
    metrics = each.evaluate(start, small, f"evaluate {target.name}", run)
    dense_metrics = each.evaluate_dense(start, run)
    report = report_of(start, pruned, target, small, found, fitted, refitted, metrics, dense_metrics, run)
    return Candidate(small, report if training is None else {**report, "training": training})

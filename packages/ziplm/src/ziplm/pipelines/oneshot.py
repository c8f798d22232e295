"""One-shot compression: every target is made from the dense model, without training or before it.

Profile, calibrate, prune, priors, search, fit, measure and the evaluation of the dense model store their
results in the run folder, so that a run can be resumed. The flow:

    load ─► profile ─► calibrate ─► prune ─► priors                        once for all targets
    search ─► fit ─► shrink ─► refit ─► measure ─► evaluate ─► save        for each target

With `mode` finetune, each model is fine-tuned before it is measured, with the dense model as teacher.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ziplm.errors import UnreachableTarget
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.options.toml import load_options
from ziplm.pipelines import (
    common_steps,
    engine_steps,
    evaluation_steps,
    prior_steps,
    refit_steps,
    target_steps,
    training_steps,
)
from ziplm.pipelines.alternatives import lacks_alternatives, measure_alternatives
from ziplm.pipelines.estimates import forecast
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import Recipe, make_recipe
from ziplm.pipelines.recover import Candidate, fastest_that_recovers
from ziplm.pipelines.report import Shrunk, quantization_report, report_of
from ziplm.pipelines.values import Pruned, Samples, Start
from ziplm.results.table import difference_text
from ziplm.runs.folder import Run
from ziplm.stages.choices import Choices
from ziplm.stages.priors import prior_names_for


def compress_oneshot(options: Options, run: Run) -> None:
    """Make all targets that are not finished yet, and report on the whole family.

    The family includes finished targets of earlier commands in the run folder. Nothing is loaded if neither a
    member nor the alternatives are missing.
    """
    targets = load_options(run.options_file).targets()
    todo = run.workers.first(lambda: [target for target in targets if not run.is_done(target.name)])
    if todo or (options.alternatives and run.workers.first(partial(lacks_alternatives, run, targets))):
        start = load_start(options, run)
        recipe = make_recipe(start, run.workers) if options.trains else None
        table = common_steps.profile(start, run)
        dense_choices = common_steps.make_choices(start, start.dense, table)
        common_steps.require_reachable(dense_choices, todo)
        if todo:
            forecast(start, dense_choices, todo, run)
        if recipe is not None:
            start = training_steps.train_dense(start, recipe, run)
        if todo:
            make_members(start, dense_choices, todo, recipe, run)
        if options.alternatives:
            measure_alternatives(start, dense_choices, targets, run)
    if options.trains:
        training_steps.write_family_report(run)


def make_members(
    start: Start, dense_choices: Choices, targets: Sequence[Target], recipe: Recipe | None, run: Run
) -> None:
    """Make a member of the family for each target, all from the same traces of the dense model."""
    pruned = prune_model(start, start.dense, dense_choices, start.samples, start.options.seed, run)
    for number, target in enumerate(targets, 1):
        run.begin_target(target.name, f"target {target.name} ({number} of {len(targets)})")
        make = make_recovering if target.kind == "recover" else make_candidate
        candidate = make(start, pruned, target, recipe, run)
        target_steps.save_member(start, candidate, run.member_folder(target.name), run)


def prune_model(
    start: Start, current: PreTrainedModel, dense_choices: Choices, samples: Samples, seed: int, run: Run
) -> Pruned:
    """Calibrate and prune the current model: everything that its targets share.

    Raises:
        UnreachableTarget: if all its branches are removed, as the member before may be in a gradual run.
    """
    if not start.remaining_branches(current):
        raise UnreachableTarget(
            "nothing is left to prune: all attention heads and FFN columns of the current model are removed",
            "leave out this target and faster ones",
        )
    fisher = common_steps.calibrate(start, current, samples, seed, run)
    traces = common_steps.prune(start, current, samples, fisher, run)
    priors = prior_steps.gather_priors(start, current, samples, traces, seed, run)
    choices = common_steps.make_choices(start, current, dense_choices.table, priors)
    chosen = start.options.prior
    prior_names: list[str] = prior_names_for(priors) if chosen == "auto" else [chosen]
    return Pruned(current, samples, seed, fisher, traces, choices, dense_choices, prior_names)


def make_candidate(
    start: Start, pruned: Pruned, target: Target, recipe: Recipe | None, run: Run
) -> Candidate:
    """Make the model for a target that states a speed or limits."""
    state = run.target_state(target.name)
    return build_and_finish(start, pruned, target, target, recipe, state, run)


def build_and_finish(
    start: Start, pruned: Pruned, target: Target, aim: Target, recipe: Recipe | None, state: Path, run: Run
) -> Candidate:
    """Make a model for a target: build it for `aim`, fine-tune it if there is a recipe, and finish it."""
    shrunk = build_shrunk(start, pruned, aim, state, run)
    training = None
    # A target that quantisation alone meets is the dense model, which has nothing to learn from itself.
    if recipe is not None and any(shrunk.fitted.levels):
        training = training_steps.finetune_member(start, recipe, shrunk.model, state, run)
    return finish(start, pruned, target, shrunk, state, run, training)


def make_recovering(
    start: Start, pruned: Pruned, target: Target, recipe: Recipe | None, run: Run
) -> Candidate:
    """Make the model for a target that states a share of the metric: the best of a few attempts."""
    guess = target_steps.guess_speedup(start, pruned, target, run)

    def build(number: int, speedup: float) -> Candidate | None:
        aim = Target("speedup", speedup, target.limits)
        state = run.target_state(target.name) / f"attempt{number}"
        try:
            return build_and_finish(start, pruned, target, aim, recipe, state, run)
        except UnreachableTarget as error:  # in all processes, also if only the first one measured
            run.reporter.note(f"recover: {speedup:.2f}x is not reached: {error.message}")
            return None

    largest_speedup = pruned.choices.largest_speedup
    found = fastest_that_recovers(guess, largest_speedup, start.task.greater_is_better, build)
    if not found.report["recover"]["kept"]:
        run.reporter.note(f"target {target.name} is missed: {guess.wanted:.4g} was wanted")
    return found


def build_shrunk(start: Start, pruned: Pruned, aim: Target, state: Path, run: Run) -> Shrunk:
    """Make a shrunk model that meets a target: search, fit, shrink, refit.

    Args:
        start: what the run starts from.
        pruned: the current model with its traces.
        aim: the speed or limits to meet, a target of any kind but "recover".
        state: folder for intermediate results.
        run: the run.
    """
    found = target_steps.search(start, pruned, aim, state, run)
    fitted = target_steps.fit(start, pruned, found, aim, state, run)
    shrunk = target_steps.shrink_to(pruned, fitted.levels)
    if not any(fitted.levels):  # quantisation alone meets the target
        return Shrunk(shrunk, found, fitted, None)
    small, refitted = refit_steps.refit_if_better(start, pruned, shrunk, run)
    return Shrunk(small, found, fitted, refitted)


def finish(
    start: Start,
    pruned: Pruned,
    target: Target,
    shrunk: Shrunk,
    state: Path,
    run: Run,
    training: dict[str, Any] | None = None,
) -> Candidate:
    """Measure and evaluate a finished model, and make its report.

    Args:
        start: what the run starts from.
        pruned: the current model with its traces.
        target: the target.
        shrunk: the model, with the weights that are saved.
        state: folder for intermediate results.
        run: the run.
        training: the summary of the model's training; None without one.
    """
    served = engine_steps.finished_in_engine(start, shrunk.model, state, run)
    measured = target_steps.measure_finished(start, served, state, run)
    compressed = evaluation_steps.evaluate(start, served, f"evaluate {target.name}", run)
    dense = evaluation_steps.evaluate_dense(start, run, beside=compressed)
    with run.timed("evaluate"):
        report = report_of(start, pruned, target, shrunk, measured, compressed, dense, run)
    run.detail(f"evaluate: {difference_text(report['metric'])}")
    if start.setting.quantize is not None:
        before = evaluation_steps.evaluate(start, shrunk.model, f"evaluate {target.name} in float32", run)
        report["quantization"] = quantization_report(start, pruned, before)
    if training is not None:
        report["training"] = training
    exported = engine_steps.exported_folder(state) if start.setting.runs_files else None
    return Candidate(shrunk.model, report, exported)

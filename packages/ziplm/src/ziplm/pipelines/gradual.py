"""Gradual compression: prune to a target, fine-tune with the dense model as teacher, and continue from there.

Each target starts from the finished member of the target before. Speedups and the latency table refer to the
dense model throughout.
"""

import shutil
import zlib
from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel

from ziplm.errors import UsageError
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.options.toml import load_options
from ziplm.pipelines import common_steps, target_steps, training_steps
from ziplm.pipelines.alternatives import measure_alternatives
from ziplm.pipelines.estimates import forecast
from ziplm.pipelines.loading import load_member, load_start
from ziplm.pipelines.oneshot import build_shrunk, finish, prune_model
from ziplm.pipelines.recipe import Recipe, make_recipe
from ziplm.pipelines.samples import draw_samples
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.stages.choices import Choices


def compress_gradually(options: Options, run: Run) -> None:
    """Make all targets that are not finished yet, each from the one before, and report on the whole family.

    Finished targets of earlier commands in the run folder are starting points as well. The traces of a
    target take several times a model's size. They are deleted when its member is finished.
    """
    targets = load_options(run.options_file).targets()
    if any(target.kind == "recover" for target in targets):
        raise UsageError("gradual compression cannot aim at a share of the metric", "give --speedup")
    start = load_start(options, run)
    recipe = make_recipe(start, run.workers)
    table = common_steps.profile(start, run)
    dense_choices = common_steps.make_choices(start, start.dense, table)
    common_steps.require_reachable(dense_choices, targets)
    targets = dense_choices.slowest_first(targets)
    forecast(start, dense_choices, targets, run)
    start = training_steps.train_dense(start, recipe, run)
    current, previous = start.dense, "dense"
    for target in targets:
        target_run = run.for_target(target.name, previous)
        folder = run.member_folder(target.name)
        if run.workers.missing(folder / "metrics.json"):
            run.begin_target(target.name, f"target {target.name}, from {previous}")
            seed = _seed_of(options.seed, previous, target)
            seeded = replace(recipe, training=replace(recipe.training, seed=seed))
            make_member(start, dense_choices, current, target, seeded, target_run)
        run.workers.first(partial(shutil.rmtree, target_run.state / "traces", ignore_errors=True))
        current, previous = load_member(start, folder), target.name
    if options.alternatives:
        measure_alternatives(start, dense_choices, targets, run)
    training_steps.write_family_report(run)


def _seed_of(seed: int, previous: str, target: Target) -> int:
    """Return a seed that depends on the target and its starting point, so that samples differ."""
    offset = zlib.crc32(f"{previous} {target.name}".encode()) % 2**16
    return (seed + offset) % 2**30


def make_member(
    start: Start,
    dense_choices: Choices,
    current: PreTrainedModel,
    target: Target,
    recipe: Recipe,
    run: Run,
) -> None:
    """Prune the current model to a target, fine-tune it, and save the member.

    The seed of the recipe is also that of the samples, the fisher and the search.
    """
    seed = recipe.training.seed
    samples = draw_samples(start.splits.train, start.options, start.task, start.dense, seed)
    pruned = prune_model(start, current, dense_choices, samples, seed, run)
    state = run.target_state(target.name)
    shrunk = build_shrunk(start, pruned, target, state, run)
    # A target that quantisation alone meets is the dense model, which has nothing to learn from itself.
    trains = any(shrunk.fitted.levels) or current is not start.dense
    summary = training_steps.finetune_member(start, recipe, shrunk.model, state, run) if trains else None
    candidate = finish(start, pruned, target, shrunk, state, run, summary)
    target_steps.save_member(start, candidate, run.member_folder(target.name), run)

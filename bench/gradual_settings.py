"""MiniLM on SST-2 and MRPC: learning rates and weights of labels and hidden states, from the same member.

All rows of a task, target and seed start from the same one-shot member. What the samples kept apart say is
printed beside the evaluation data; the defaults of ziplm were chosen by the former.
"""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ziplm
from gradual_modes import HERE as MODES
from gradual_modes import Experiment, data_of, options_of, pruned_once
from gradual_parts import FOLDER, Judge, keep, rows_in, table_file
from harness import print_table
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import make_recipe, with_checks
from ziplm.runs.folder import Run
from ziplm.stages.evaluate import divergences
from ziplm.stages.finetune import finetune
from ziplm.tasks.heads import mean_divergence

HERE = FOLDER / "settings"


@dataclass(frozen=True)
class Setting:
    """One row of the table: a member, and how it is trained."""

    task: str
    target: float
    steps: int
    seed: int
    labels: float  # weight of the task's own loss
    rate: float
    token: float  # weight of the hidden states

    @property
    def name(self) -> str:
        """Name of the row's file."""
        return "-".join(
            f"{value:g}" if isinstance(value, float) else str(value) for value in vars(self).values()
        )


def run(
    data: Path,
    tasks: Sequence[str],
    targets: Sequence[float],
    steps: Sequence[int],
    seeds: Sequence[int],
    labels: Sequence[float],
    rates: Sequence[float],
    tokens: Sequence[float],
) -> None:
    """Train and judge one model after the other, unless its row exists."""
    every = itertools.product(seeds, tasks, targets, steps, labels, rates, tokens)
    for seed, task, target, count, weight, rate, token in every:
        setting = Setting(task, target, count, seed, weight, rate, token)
        path = HERE / "rows" / f"{setting.name}.json"
        if not path.exists():
            keep(path, {**vars(setting), **trained(setting, data)})


def trained(setting: Setting, data: Path) -> dict[str, Any]:
    """Train the one-shot member with a setting; return how good it is."""
    experiment = Experiment(setting.task, setting.steps, setting.seed, "finetune")
    options = options_of(
        experiment,
        data,
        output=str(HERE / "unused"),
        speedup=(setting.target,),
        mode="finetune",
        steps_per_target=setting.steps,
        learning_rate=setting.rate,
        task_weight=setting.labels,
        token_weight=setting.token,
    )
    judge = Judge(setting.task, Path(options.model), data_of(setting.task, data)[1], 128)
    folder = pruned_once(experiment, [setting.target], data, table_file(MODES, options), judge)
    start = load_start(options, Run(options.output))
    recipe = with_checks(make_recipe(start), 1)
    student = ziplm.load(folder / f"{setting.target:g}x")
    state = HERE / "training" / setting.name
    summary = finetune(
        student,
        start.task,
        recipe.examples,
        replace(recipe.training, patience=0),  # to the end, so that all rates have fallen to zero
        teacher=start.dense,
        loss=recipe.loss,
        folder=state,
        apart=recipe.apart,
    )
    shutil.rmtree(state)
    return {
        "best_step": summary.best_step,
        "seconds": summary.seconds,
        "apart": start.task.evaluate(student, recipe.apart)[start.task.metric],
        "apart_kl": mean_divergence(divergences(student, start.dense_outputs, start.task, recipe.apart)),
        **judge(student),
    }


def report() -> None:
    """Print a table for each task."""
    rows = rows_in(HERE)
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        splits = [name for name in ("held-out", "dev") if name in own[0]]
        print_table(
            task,
            ["target", "steps", "seed", "labels", "hidden", "rate", "KL apart", "apart", "KL", *splits],
            [list(line) for line in _lines(own, splits)],
        )


def _lines(rows: list[dict[str, Any]], splits: Sequence[str]) -> Iterator[Sequence[Any]]:
    order = ("target", "steps", "seed", "token", "labels", "rate")
    for row in sorted(rows, key=lambda row: [row[name] for name in order]):
        yield [
            f"{row['target']:g}x",
            row["steps"],
            row["seed"],
            f"{row['labels']:g}",
            f"{row['token']:g}",
            f"{row['rate']:.1e}",
            f"{row['apart_kl']:.4f}",
            f"{100 * row['apart']:.1f}",
            f"{row['kl']:.4f}",
            *(f"{100 * row[split]:.1f}" for split in splits),
        ]

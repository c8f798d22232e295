"""MiniLM on SST-2 and MRPC: modes finetune and gradual, and kept layers, with the same losses and steps.

All three train with the defaults of ziplm: the dense model as teacher, and samples kept apart. A run of mode
gradual goes from one target to the next, with that many steps for each. Kept layers are evenly spread ones of
the dense model; their hidden states are compared with those of the same layers of the dense model. Their
learning rate follows from their divergence as well. That rule was found with pruned members, so with the
fewest steps they are also trained with half and twice the rate; the rate with the lowest loss on the samples
kept apart counts, and is used with more steps as well.
"""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ziplm
from gradual_parts import FOLDER, Judge, compress, keep, measured, rows_in, table_file
from harness import print_table
from models import BUILD
from torch import nn
from transformers import PreTrainedModel
from ziplm.architectures.layer_dropping import evenly_spaced, keep_layers
from ziplm.files import read_json
from ziplm.options.options import Options
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import learning_rate_for, make_recipe, with_checks
from ziplm.runs.folder import Run
from ziplm.stages.evaluate import divergences
from ziplm.stages.finetune import finetune
from ziplm.tasks.heads import mean_divergence

HERE = FOLDER / "modes"
LAYERS = {2.0: 3, 3.0: 2, 6.0: 1}  # of six: the number of kept layers that is about as fast as a target
METHODS = ("finetune", "kept layers", "gradual")
FACTORS = (0.5, 1, 2)  # of the default learning rate at their distance, that kept layers are trained with


@dataclass(frozen=True)
class Experiment:
    """A method on a task, with a seed and a number of steps for each target; each target is a row."""

    task: str
    steps: int
    seed: int
    method: str

    def row_file(self, target: float) -> Path:
        """Return the file of the row of a target."""
        method = self.method.replace(" ", "-")
        return HERE / "rows" / f"{self.task}-{target:g}x-{self.steps}-{self.seed}-{method}.json"


def experiments(
    tasks: list[str], methods: list[str], steps: list[int], seeds: list[int]
) -> Iterator[Experiment]:
    """Yield all experiments, the most interesting first."""
    for seed, count, task, method in itertools.product(seeds, steps, tasks, methods):
        yield Experiment(task, count, seed, method)


def data_of(task: str, data: Path) -> tuple[Path, dict[str, Path]]:
    """Return the training file of a task, and the files that models are judged on."""
    if task == "mrpc":
        return data / "MRPC" / "train.tsv", {"dev": data / "MRPC" / "dev.tsv"}
    divided = BUILD / "data" / "sst2"
    return divided / "train.tsv", {"held-out": divided / "heldout.tsv", "dev": data / "SST-2" / "dev.tsv"}


def options_of(experiment: Experiment, data: Path, **more: Any) -> Options:
    """Return the options of a run, with one thread and in CPU time."""
    train, judged = data_of(experiment.task, data)
    return Options(
        model=str(BUILD / "models" / f"minilm-{experiment.task}"),
        task=experiment.task,
        train_file=str(train),
        validation_file=str(judged["dev"]),
        input_length=128,
        threads=1,
        clock="cpu",
        measure_seconds=10,
        seed=experiment.seed,
        **more,
    )


def run(
    data: Path,
    tasks: list[str],
    methods: list[str],
    targets: list[float],
    steps: list[int],
    seeds: list[int],
) -> None:
    """Make and judge one model after the other, unless its row exists."""
    judges: dict[str, Judge] = {}
    for experiment in experiments(tasks, methods, sorted(steps), seeds):
        task = experiment.task
        if all(experiment.row_file(target).exists() for target in targets):
            continue
        if task not in judges:
            model = BUILD / "models" / f"minilm-{task}"
            judges[task] = Judge(task, model, data_of(task, data)[1], 128)
            path = HERE / "rows" / f"{task}-dense.json"
            if not path.exists():
                keep(path, {"task": task, "method": "dense", **judges[task](judges[task].model)})
        if experiment.method == "kept layers":
            for target in targets:
                with_layers(experiment, target, min(steps), data, judges[task])
        else:
            with_ziplm(experiment, targets, data, judges[task])


def with_ziplm(experiment: Experiment, targets: list[float], data: Path, judge: Judge) -> None:
    """Compress to all targets with one of the modes; write how fast and how good the members are."""
    task, seed, steps = experiment.task, experiment.seed, experiment.steps
    output = HERE / f"{task}-{experiment.method}-{steps}-{seed}"
    options = options_of(
        experiment,
        data,
        output=str(output),
        mode=experiment.method,
        speedup=tuple(sorted(targets)),
        steps_per_target=steps,
    )
    table = table_file(HERE, options)  # the models of both tasks have the same layers
    pruned = pruned_once(experiment, targets, data, table, judge) if experiment.method == "finetune" else None
    for member in compress(options, table, pruned):
        target = float(member.metrics["target"]["value"])
        path = experiment.row_file(target)
        if not path.exists():
            training = member.metrics["training"]
            made = {
                "best_step": training["best_step"],
                "training_seconds": training["seconds"],
                "learning_rate": training["learning_rate"],
                "apart": min(loss for _, loss, *_ in training["checks"]),
                "cpu_seconds": sum(member.metrics["cpu_seconds"].values()),
            }
            judged = judge(ziplm.load(member.folder))
            keep(path, {**vars(experiment), "target": target, **measured(member), **made, **judged})


def pruned_once(experiment: Experiment, targets: list[float], data: Path, table: Path, judge: Judge) -> Path:
    """Return the run without training, whose traces and sizes all runs of mode finetune start from."""
    untrained = replace(experiment, steps=0, method="no training")
    folder = HERE / f"{experiment.task}-oneshot-{experiment.seed}"
    options = options_of(experiment, data, output=str(folder), speedup=tuple(sorted(targets)))
    for member in compress(options, table):
        target = float(member.metrics["target"]["value"])
        path = untrained.row_file(target)
        if not path.exists():
            judged = judge(ziplm.load(member.folder))
            keep(path, {**vars(untrained), "target": target, **measured(member), **judged})
    return folder


def with_layers(experiment: Experiment, target: float, fewest: int, data: Path, judge: Judge) -> None:
    """Keep some layers of the dense model, train them as a member is trained, and write how good they are."""
    path = experiment.row_file(target)
    if path.exists():
        return
    trained = {"mode": "finetune", "steps_per_target": experiment.steps}
    options = options_of(experiment, data, output=str(HERE / "unused"), speedup=(target,), **trained)
    start = load_start(options, Run(options.output))
    recipe = with_checks(make_recipe(start), 1)
    kept = evenly_spaced(6, LAYERS[target])
    teacher: Any = SomeLayers(start.dense, kept)
    factors: tuple[float, ...] = FACTORS
    if experiment.steps > fewest:
        factors = (read_json(replace(experiment, steps=fewest).row_file(target))["factor"],)
    attempts = []
    parts = divergences(keep_layers(start.dense, kept), start.dense_outputs, start.task, recipe.apart)
    rate = learning_rate_for(mean_divergence(parts), start.dense.config.hidden_size)
    for factor in factors:
        student = keep_layers(start.dense, kept)
        training = replace(recipe.training, learning_rate=factor * rate)
        folder = HERE / "training" / f"{path.stem}-{factor}"
        summary = finetune(
            student,
            start.task,
            recipe.examples,
            training,
            teacher=teacher,
            loss=recipe.loss,
            folder=folder,
            apart=recipe.apart,
        )
        attempts.append((min(check.loss for check in summary.checks), factor, training, summary, student))
    apart, factor, training, summary, student = min(attempts, key=lambda attempt: attempt[0])
    made = {
        "best_step": summary.best_step,
        "training_seconds": summary.seconds,
        "learning_rate": training.learning_rate,
        "factor": factor,
        "apart": apart,
    }
    keep(path, {**vars(experiment), "target": target, **made, **judge(student)})
    for factor in factors:
        shutil.rmtree(HERE / "training" / f"{path.stem}-{factor}")


class SomeLayers(nn.Module):
    """The dense model, with the hidden states of some of its layers only."""

    def __init__(self, dense: PreTrainedModel, kept: list[int]) -> None:
        super().__init__()
        self.dense, self.kept = dense, kept

    def forward(self, **inputs: Any) -> Any:
        """Return the outputs, with the hidden states before the first layer and after each kept one."""
        outputs = self.dense(**inputs)
        if outputs.hidden_states is not None:
            outputs.hidden_states = tuple(outputs.hidden_states[i] for i in (0, *(k + 1 for k in self.kept)))
        return outputs


def report() -> None:
    """Print a table for each task: metric at each number of steps and target, and speeds of the members."""
    rows = rows_in(HERE)
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        splits = [name for name in ("held-out", "dev") if name in own[0]]
        lines = [
            [
                row["method"],
                f"{row['target']:g}x" if "target" in row else "",
                row.get("steps", ""),
                row.get("seed", ""),
                f"{row['speedup']:.2f}" if "speedup" in row else "",
                *(f"{100 * row[split]:.1f}" for split in splits),
                f"{row['kl']:.4f}" if "kl" in row else "",
                f"{row['apart']:.4f}" if "apart" in row else "",
                f"{row['learning_rate']:.1e}" if "learning_rate" in row else "",
                f"{row['training_seconds']:.0f}" if "training_seconds" in row else "",
            ]
            for row in sorted(own, key=lambda row: (row.get("target", 0), row.get("steps", 0), row["method"]))
        ]
        columns = ["", "target", "steps", "seed", "speed", *splits, "KL", "apart", "rate", "seconds"]
        note = "KL: to the dense model, on the first of these splits; apart: loss on the samples kept apart"
        print_table(task, columns, lines, note=note)

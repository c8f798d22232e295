"""MiniLM on SST-2 and MRPC: modes finetune and gradual, and kept layers, with the same losses and steps.

All three train with the defaults of ziplm: the dense model as teacher, labels, and samples kept apart. A run
of mode gradual goes through all smaller targets, with that many steps for each. Kept layers are evenly spread
ones of the dense model; their hidden states are compared with those of the same layers of the dense model.
They have more to learn, so they are trained twice, also with twice the learning rate, and the model with the
lower loss on the samples kept apart counts.
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
from ziplm.options.options import Options
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import make_recipe, with_checks
from ziplm.runs.folder import Run
from ziplm.stages.finetune import finetune

HERE = FOLDER / "modes"
LAYERS = {2.0: 3, 3.0: 2, 6.0: 1}  # of six: the number of kept layers that is about as fast as a target
METHODS = ("finetune", "kept layers", "gradual")


@dataclass(frozen=True)
class Experiment:
    """One row of the table: a method on a task, to a target, with a number of steps and a seed."""

    task: str
    target: float
    steps: int
    seed: int
    method: str

    @property
    def name(self) -> str:
        """Name of the row's file."""
        method = self.method.replace(" ", "-")
        return f"{self.task}-{self.target:g}x-{self.steps}-{self.seed}-{method}"


def experiments(
    tasks: list[str], targets: list[float], steps: list[int], seeds: list[int]
) -> Iterator[Experiment]:
    """Yield all experiments, the most interesting first."""
    for seed, target, count, task, method in itertools.product(seeds, targets, steps, tasks, METHODS):
        yield Experiment(task, target, count, seed, method)


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


def run(data: Path, tasks: list[str], targets: list[float], steps: list[int], seeds: list[int]) -> None:
    """Make and judge one model after the other, unless its row exists."""
    judges: dict[str, Judge] = {}
    for experiment in experiments(tasks, targets, steps, seeds):
        task = experiment.task
        if task not in judges:
            model = BUILD / "models" / f"minilm-{task}"
            judges[task] = Judge(task, model, data_of(task, data)[1], 128)
            if not (HERE / "rows" / f"{task}-dense.json").exists():
                keep(
                    HERE / "rows" / f"{task}-dense.json",
                    {"task": task, "method": "dense", **judges[task](judges[task].model)},
                )
        path = HERE / "rows" / f"{experiment.name}.json"
        if not path.exists():
            make = with_layers if experiment.method == "kept layers" else with_ziplm
            keep(path, {**vars(experiment), **make(experiment, data, judges[task])})


def with_ziplm(experiment: Experiment, data: Path, judge: Judge) -> dict[str, Any]:
    """Compress to the target with one of the modes; return what is measured, and how good the member is."""
    task, seed, steps = experiment.task, experiment.seed, experiment.steps
    gradual = experiment.method == "gradual"
    targets = tuple(target for target in LAYERS if target <= experiment.target)
    output = HERE / f"{task}-{experiment.method}-{steps}-{seed}"
    options = options_of(
        experiment,
        data,
        output=str(output),
        mode=experiment.method,
        speedup=targets if gradual else (experiment.target,),
        steps_per_target=steps,
    )
    table = table_file(HERE, options)  # both models have the same layers
    pruned = None
    if not gradual:
        pruned = pruned_once(experiment, data, table)
    member = compress(options, table, pruned)[-1]
    training = member.metrics["training"]
    return {
        **measured(member),
        "best_step": training["best_step"],
        "training_seconds": training["seconds"],
        "learning_rate": training["learning_rate"],
        "cpu_seconds": sum(member.metrics["cpu_seconds"].values()),
        **judge(ziplm.load(member.folder)),
    }


def pruned_once(experiment: Experiment, data: Path, table: Path) -> Path:
    """Return the run without training, whose traces and sizes all runs of mode finetune start from."""
    task, seed = experiment.task, experiment.seed
    folder = HERE / f"{task}-oneshot-{seed}"
    options = options_of(experiment, data, output=str(folder), speedup=(experiment.target,))
    (member,) = compress(options, table)
    path = HERE / "rows" / f"{task}-{experiment.target:g}x-0-{seed}-oneshot.json"
    if not path.exists():
        judge = Judge(task, Path(options.model), data_of(task, data)[1], 128)
        row = {**vars(experiment), "steps": 0, "method": "no training"}
        keep(path, {**row, **measured(member), **judge(ziplm.load(member.folder))})
    return folder


def with_layers(experiment: Experiment, data: Path, judge: Judge) -> dict[str, Any]:
    """Keep some layers of the dense model and train them as a member is trained."""
    trained = {"mode": "finetune", "steps_per_target": experiment.steps}
    options = options_of(
        experiment, data, output=str(HERE / "unused"), speedup=(experiment.target,), **trained
    )
    start = load_start(options, Run(options.output))
    recipe = with_checks(make_recipe(start), 1)
    kept = evenly_spaced(6, LAYERS[experiment.target])
    teacher: Any = SomeLayers(start.dense, kept)
    folder = HERE / "training" / experiment.name
    attempts = []
    for factor in (1, 2):
        student = keep_layers(start.dense, kept)
        training = replace(recipe.training, learning_rate=factor * recipe.training.learning_rate)
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
        shutil.rmtree(folder)
        attempts.append((min(check.loss for check in summary.checks), training, summary, student))
    _, training, summary, student = min(attempts, key=lambda attempt: attempt[0])
    return {
        "best_step": summary.best_step,
        "training_seconds": summary.seconds,
        "learning_rate": training.learning_rate,
        **judge(student),
    }


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
                f"{row['learning_rate']:.1e}" if "learning_rate" in row else "",
                f"{row['training_seconds']:.0f}" if "training_seconds" in row else "",
            ]
            for row in sorted(own, key=lambda row: (row.get("target", 0), row.get("steps", 0), row["method"]))
        ]
        columns = [
            "",
            "target",
            "steps",
            "seed",
            "speedup",
            *splits,
            "KL to dense",
            "learning rate",
            "training, s",
        ]
        print_table(task, columns, lines)

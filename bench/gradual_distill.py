"""Fine-tuning with and without token distillation, at 3x, with all of SST-2 and with 1,000 examples of it.

The model is pruned one-shot, once for each amount of data. Then it is fine-tuned with each loss and seed.
"""

import itertools
import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gradual_sst2
import ziplm
from gradual_parts import FOLDER, Judge, keep, rows_in, table_file
from gradual_sst2 import LENGTH, MODEL, TRAIN, held_out
from harness import print_table
from models import tell, write_lines
from token_distill import DistillationLoss
from transformers import PreTrainedModel
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm.tasks import Features

TARGET = 3.0
FEW = 1000
HERE = FOLDER / "distill"
LOSSES = {
    "tokens and logits": DistillationLoss.preset("glue"),
    "logits": replace(DistillationLoss.preset("glue"), token=0.0),
    "no teacher": DistillationLoss(task=1.0, logit=0.0, token=0.0),
}


def few_examples() -> Path:
    """Return a file with a fixed sample of the training examples."""
    path = HERE / f"train-{FEW}.tsv"
    if not path.exists():
        header, *lines = TRAIN.read_text(encoding="utf-8").splitlines()
        write_lines(path, [header, *random.Random(0).sample(lines, FEW)])
    return path


def run(data: Path, steps: int, seeds: list[int]) -> None:
    """Prune with each amount of data, and train with each loss and seed, unless the result exists."""
    judge = Judge("sst2", MODEL, held_out(data), LENGTH)
    files = {"all": TRAIN, "few": few_examples()}
    pruned = {name: prune(data, name, file) for name, file in files.items()}
    features = {name: judge.training(file) for name, file in files.items()}
    for name, folder in pruned.items():
        if not (HERE / "rows" / f"{name}.json").exists():
            keep(HERE / "rows" / f"{name}.json", {"data": name, **judge(ziplm.load(folder))})
    for loss, seed, name in itertools.product(LOSSES, seeds, files):
        path = HERE / "rows" / f"{name}-{loss}-{seed}.json"
        if not path.exists():
            student = ziplm.load(pruned[name])
            taken = train(student, judge, features[name], LOSSES[loss], steps, seed)
            keep(path, {"data": name, "loss": loss, "seed": seed, "steps": taken, **judge(student)})


def prune(data: Path, name: str, file: Path) -> Path:
    """Return the folder of the model that was pruned with these examples and not trained."""
    folder, own = HERE / f"pruned-{name}", {"speedup": (TARGET,), "train_file": str(file)}
    table = table_file(gradual_sst2.HERE, gradual_sst2.options_of(data, folder))
    options = gradual_sst2.options_of(data, folder, latency_table=str(table), **own)
    return ziplm.compress(options=options, progress=True)[0].folder


def train(
    student: PreTrainedModel,
    judge: Judge,
    features: Sequence[Features],
    loss: DistillationLoss,
    steps: int,
    seed: int,
) -> int:
    """Fine-tune a pruned model in place with the paper's options for GLUE; return the number of steps."""
    folder = HERE / "training"
    shutil.rmtree(folder, ignore_errors=True)
    summary = finetune(
        student,
        judge.task,
        features,
        TrainingOptions(learning_rate=8e-5, max_steps=steps, batch_size=32, weight_decay=0.03, seed=seed),
        teacher=judge.model if loss.logit or loss.token else None,
        loss=loss,
        folder=folder,
        progress=tell,
    )
    shutil.rmtree(folder)
    return summary.steps


def report() -> None:
    """Print mean and spread over the seeds, and the gain from token distillation for each seed."""
    rows = rows_in(HERE)
    for split in ("dev", "held-out"):
        lines = []
        for name in ("all", "few"):
            lines += [
                [f"{name} examples: pruned, not trained", f"{row[split]:.4f}", "", ""]
                for row in rows
                if row["data"] == name and "loss" not in row
            ]
            tokens = _by_seed(rows, name, "tokens and logits", split)
            for loss in LOSSES:
                found = _by_seed(rows, name, loss, split)
                if not found:
                    continue
                spread = f"{statistics.stdev(found.values()):.4f}" if len(found) > 1 else ""
                gains = [f"{tokens[seed] - value:+.4f}" for seed, value in found.items() if seed in tokens]
                shown = " ".join(gains) if loss != "tokens and logits" else ""
                mean = f"{statistics.mean(found.values()):.4f}"
                lines.append([f"{name} examples: {loss}", mean, spread, shown])
        columns = ["", "mean", "spread over seeds", "gain from tokens, each seed"]
        print_table(f"SST-2 at {TARGET:g}x, accuracy, {split}", columns, lines)


def _by_seed(rows: list[dict[str, object]], data: str, loss: str, split: str) -> dict[int, float]:
    return {
        int(str(row["seed"])): float(str(row[split]))
        for row in rows
        if (row["data"], row.get("loss")) == (data, loss)
    }

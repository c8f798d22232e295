"""Shared by the experiments of bench/gradual.py: the latency table, runs that use it, and rows of results."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ziplm
from models import BUILD
from transformers import PreTrainedModel
from ziplm.files import read_json, write_json, written_whole
from ziplm.options.options import Options
from ziplm.pipelines.inputs import Inputs, keep_inputs
from ziplm.runs.opening import open_run
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.evaluate import divergences
from ziplm.stages.profile import latency_table
from ziplm.tasks import Features, Source, make_task
from ziplm.tasks.heads import mean_divergence

FOLDER = BUILD / "gradual"
COMPARED = 1000  # examples on which outputs are compared with those of the dense model


def table_file(folder: Path, options: Options, seconds: float = 120) -> Path:
    """Return the latency table of a run's dense model; it is measured once, with the run's clock."""
    path = folder / "latency.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        latency_table(ziplm.load(options.model), options.setting, max_seconds=seconds).save(path)
    return path


def compress(options: Options, table: Path, pruned: Path | None = None) -> ziplm.Family:
    """Compress with a given latency table, but measure the members.

    The option `latency_table` would switch off all measurements, so the table is copied to the run folder. So
    are the traces and sizes of `pruned`, a one-shot run with the same seed, if it is given.
    """
    with open_run(options) as run:
        keep_inputs(run, options, Inputs())  # before results are in the folder: it says what they belong to
        if pruned is not None:
            names = [
                "fisher.safetensors",
                "traces",
                "priors",
                *(f"targets/{t.name}" for t in options.targets()),
            ]
            for name in names:
                if not (run.state / name).exists():
                    copy(pruned / "state" / name, run.state / name)
        if not run.latency_file.exists():
            with written_whole(run.latency_file) as temporary:
                shutil.copyfile(table, temporary)
    return ziplm.compress(options=options, progress=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


class Judge:
    """Computes the main metric of models on files of examples, which are tokenised once."""

    def __init__(self, task: str, model: Path, files: Mapping[str, Path], max_length: int) -> None:
        self.task = make_task(task)
        self.model, self.max_length = self.task.load_model(str(model)), max_length
        self.tokenizer = self.task.load_tokenizer(str(model))
        self.splits = {name: self._read(Source(eval_file=str(path))) for name, path in files.items()}

    def _read(self, source: Source) -> Sequence[Features]:
        splits = self.task.load_splits(self.model, self.tokenizer, source, self.max_length)
        return splits.evaluation["eval"]

    def training(self, file: Path) -> Sequence[Features]:
        """Return the examples of a file to train on."""
        source = Source(train_file=str(file))
        return self.task.load_splits(self.model, self.tokenizer, source, self.max_length).train

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Return the main metric on every file, and the divergence from the dense model on the first."""
        metrics = {
            name: self.task.evaluate(model, features)[self.task.metric]
            for name, features in self.splits.items()
        }
        if model is self.model:
            return metrics
        first = next(iter(self.splits.values()))[:COMPARED]
        return {
            **metrics,
            "kl": mean_divergence(divergences(model, DenseOutputs(self.model, self.task), self.task, first)),
        }


def keep(path: Path, row: Mapping[str, Any]) -> None:
    """Write a row of results to a file, and print it."""
    write_json(path, dict(row))
    print(path.stem, dict(row), flush=True)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return all rows of results in a folder."""
    return [read_json(path) for path in sorted((folder / "rows").glob("*.json"))]


def measured(member: ziplm.Member) -> dict[str, float]:
    """Return the measured speedup of a member with its interval."""
    found = member.metrics["measured"]
    return {name: found[name] for name in ("speedup", "low", "high")}

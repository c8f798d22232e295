"""What the experiments of bench/gradual.py share: one latency table, runs that use it, figures on files."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ziplm
from models import BUILD
from transformers import PreTrainedModel
from ziplm.options.options import Options
from ziplm.files import read_json, write_json, written_whole
from ziplm.stages.profile import latency_table
from ziplm.runs.opening import open_run
from ziplm.tasks import Features, Source, make_task

FOLDER = BUILD / "gradual"


def table_file(folder: Path, config: Options, seconds: float = 120) -> Path:
    """The latency table of the dense model of a config, measured once, in CPU time."""
    path = folder / "latency.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        latency_table(ziplm.load(config.model), config.setting, max_seconds=seconds).save(path)
    return path


def compress(config: Options, table: Path) -> list[ziplm.Member]:
    """`ziplm compress` with a latency table that it did not measure, and models that it does measure."""
    with open_run(config) as run:
        if not run.latency_file.exists():
            with written_whole(run.latency_file) as temporary:
                shutil.copyfile(table, temporary)
    return ziplm.compress(config=config, progress=True)


class Judge:
    """The main metric of models on files of examples, tokenised once."""

    def __init__(self, task: str, model: Path, files: Mapping[str, Path], max_length: int) -> None:
        self.task = make_task(task)
        self.model, self.max_length = self.task.load_model(str(model)), max_length
        self.tokenizer = self.task.load_tokenizer(str(model))
        self.splits = {name: self._read(Source(eval_file=str(path))) for name, path in files.items()}

    def _read(self, source: Source) -> Sequence[Features]:
        splits = self.task.load_splits(self.model, self.tokenizer, source, self.max_length)
        return splits.evaluation["eval"]

    def training(self, file: Path) -> Sequence[Features]:
        """Examples to train on."""
        source = Source(train_file=str(file))
        return self.task.load_splits(self.model, self.tokenizer, source, self.max_length).train

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """The main metric on every file."""
        return {
            name: self.task.evaluate(model, features)[self.task.metric]
            for name, features in self.splits.items()
        }


def keep(path: Path, row: Mapping[str, Any]) -> None:
    """Write a row of results, and show it."""
    write_json(path, dict(row))
    print(path.stem, dict(row), flush=True)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows that there are."""
    return [read_json(path) for path in sorted((folder / "rows").glob("*.json"))]


def measured(member: ziplm.Member) -> dict[str, float]:
    """The speedup of a finished target with its interval."""
    found = member.metrics["measured"]
    return {name: found[name] for name in ("speedup", "low", "high")}

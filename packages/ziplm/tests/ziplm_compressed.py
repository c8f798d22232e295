"""Two tiny dense models with data for both, and options for runs on them that measure nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import ziplm
from ziplm_pipeline import CLASSIFIER, DECODER, linear_table, lively_model
from ziplm_text import bare_tokenizer, letter_tokenizer, write_rows

LENGTH = 16


def words(count: int, seed: int) -> list[str]:
    """Return texts of two to seven random letters, each letter a word."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        letters = torch.randint(97, 123, (2 + index % 6,), generator=generator)
        made.append(" ".join(chr(int(letter)) for letter in letters))
    return made


def write_files(folder: Path) -> Path:
    """Write two dense models, data for both, and a latency table; return the folder."""
    ziplm.save(lively_model(CLASSIFIER), folder / "bert", letter_tokenizer())
    ziplm.save(lively_model(DECODER), folder / "gpt2", bare_tokenizer())
    rows = [{"text": text, "label": ord(text[0]) % 2} for text in words(80, 0)]
    write_rows(folder / "train.csv", rows)
    write_rows(folder / "valid.csv", rows[:30])
    (folder / "train.txt").write_text(" ".join(words(400, 1)))
    (folder / "valid.txt").write_text(" ".join(words(40, 2)))
    linear_table().save(folder / "latency.json")
    return folder


def options_for(files: Path, architecture: str, output: Path, **more: Any) -> dict[str, Any]:
    """Return options of `compress` for one of the models of `write_files`: "bert" or "gpt2"."""
    task, ending = ("classification", "csv") if architecture == "bert" else ("causal-lm", "txt")
    return {
        "model": str(files / architecture),
        "task": task,
        "output": str(output),
        "train_file": str(files / f"train.{ending}"),
        "validation_file": str(files / f"valid.{ending}"),
        "latency_table": str(files / "latency.json"),
        "input_length": LENGTH,
        "calibration_samples": 40,
        "search_samples": 10,
        "calibration_batch_size": 16,
        "evaluations": 5,
        "threads": 1,
        **({} if more.get("method") == "ziplm" else {"refit": True}),  # off by default for classifiers
        **more,
    }


def command_line(options: dict[str, Any]) -> list[str]:
    """Return the arguments of `ziplm` that stand for options of `compress`."""
    line = ["compress", str(options["model"])]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            line.append(f"--{flag}" if value else f"--no-{flag}")
        elif name != "model":
            for each in value if isinstance(value, list) else [value]:
                line += [f"--{flag}", str(each)]
    return line


def without_times(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return a report without what differs between two runs with the same result."""
    times = ("seconds", "cpu_seconds", "bytes_on_disk", "command")
    return {name: value for name, value in metrics.items() if name not in times}


class Recorder:
    """A reporter that keeps the descriptions of all stages, and all notes."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def stage(self, description: str) -> Iterator[Callable[[float, float], None]]:
        """Keep the description."""
        self.stages.append(description)
        yield lambda done, total: None

    def note(self, text: str) -> None:
        """Keep the text."""
        self.notes.append(text)

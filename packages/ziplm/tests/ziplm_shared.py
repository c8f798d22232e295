"""Data and options of runs in which several processes find what one process finds."""

from pathlib import Path
from typing import Any

import torch
import ziplm
from ziplm_pipeline import CLASSIFIER, DECODER, linear_table, lively_model
from ziplm_text import bare_tokenizer, letter_tokenizer, write_rows

GRADUAL = {
    "mode": "gradual",
    "speedup": [1.5, 2.5],
    "dense_steps": 2,
    "steps_per_target": 4,
    "train_batch_size": 8,
    "learning_rate": 1e-3,
    "dropout": False,
    "calibration_batch_size": 64,  # one batch: the second process has none
}


def write_shared_files(folder: Path) -> Path:
    """Write two dense models, data for both, and a latency table; return the folder."""
    ziplm.save(lively_model(CLASSIFIER), folder / "bert", letter_tokenizer())
    ziplm.save(lively_model(DECODER), folder / "gpt2", bare_tokenizer())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(80):
        letters = torch.randint(97, 123, (2 + index % 6,), generator=generator).tolist()
        rows.append({"text": " ".join(map(chr, letters)), "label": letters[0] % 2})
    write_rows(folder / "train.csv", rows)
    write_rows(folder / "valid.csv", rows[:20])
    even = torch.randint(97, 123, (80, 5), generator=generator).tolist()
    write_rows(folder / "even.csv", [{"text": " ".join(map(chr, row)), "label": row[0] % 2} for row in even])
    write_rows(folder / "texts.csv", [{"text": row["text"]} for row in rows])
    (folder / "train.txt").write_text(" ".join(row["text"] for row in 6 * rows))
    (folder / "valid.txt").write_text(" ".join(row["text"] for row in rows[:20]))
    linear_table().save(folder / "latency.json")
    return folder


def shared_options(files: Path, name: str, output: Path, **more: Any) -> dict[str, Any]:
    """Return options of `compress` for a classifier ("bert"), a decoder ("gpt2") or an "embedding"."""
    task, train, valid = {
        "bert": ("classification", "train.csv", "valid.csv"),
        "gpt2": ("causal-lm", "train.txt", "valid.txt"),
        "embedding": ("embedding", "texts.csv", "texts.csv"),
    }[name]
    return {
        "model": str(files / ("gpt2" if name == "gpt2" else "bert")),
        "task": task,
        "output": str(output),
        "train_file": str(files / train),
        "validation_file": str(files / valid),
        "latency_table": str(files / "latency.json"),
        "input_length": 16,
        "calibration_samples": 40,
        "search_samples": 12,
        "calibration_batch_size": 6,  # seven batches: shares are not equal
        "evaluations": 6,
        "threads": 1,
        "refit": True,  # off by default for classifiers
        "speedup": [2],
        **more,
    }


def shared_gradual_options(files: Path, output: Path) -> dict[str, Any]:
    """Return options of a gradual run on examples of one length.

    With several lengths, the mean over two halves of a batch would not be the mean over its tokens.
    """
    return shared_options(files, "bert", output, **{**GRADUAL, "train_file": str(files / "even.csv")})

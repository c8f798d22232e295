"""A folder in which the commands of the documentation work: tiny models and data under the documented names.

Models and datasets of the hub are folders with their names here, so that commands can be run as they are
written, without a network.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
import ziplm
from latency_profiler import Environment, LatencyCurve, LatencyTable
from transformers import BertConfig, GPT2Config
from ziplm.stages.levels import size_grid
from ziplm.tasks.glue import SPECS
from ziplm_text import bare_tokenizer, letter_tokenizer, write_rows

HEADS, WIDTH, POSITIONS = 4, 32, 1024
CLASSIFIERS = (
    "models/mine",
    "models/dense",
    "my-model",
    "textattack/bert-base-uncased-SST-2",
    "build/models/minilm-sst2",
    "build/demo/bert/MiniLM-L6-reviews",
)
PRETRAINED = ("bert-base-uncased", "bert-large-uncased", "sentence-transformers/all-MiniLM-L6-v2")
DECODERS = ("gpt2", "build/models/gpt2-wikitext2")
TEXTS = (
    "train.txt",
    "valid.txt",
    "sentences.txt",
    "sentences-dev.txt",
    "openwebtext-train.txt",
    "openwebtext-valid.txt",
    "wikitext-103-test.txt",
    "DATA/wikitext-2/train.txt",
    "DATA/wikitext-2/test.txt",
)


def write_world(folder: Path = Path()) -> None:
    """Write models, data and latency tables under the names that the documentation uses."""
    _write_models(folder)
    rows = [
        {"text": f"{a} {b} {c}", "label": int(c in "go")}
        for a, b, c in product("ath", "fpwx", "godb")
        if a != b
    ]
    demo = Path("build/demo/bert/data")
    (folder / demo).mkdir(parents=True)
    for name in (
        "train.csv",
        "dev.csv",
        "valid.csv",
        "test.csv",
        demo / "train.csv",
        demo / "validation.csv",
    ):
        write_rows(folder / name, rows)
    for name in ("train.tsv", "dev.tsv", "DATA/SST-2/dev.tsv", "build/data/sst2/train.tsv"):
        lines = [f"{row['text']}\t{row['label']}" for row in rows]
        _write(folder / name, "\n".join(["sentence\tlabel", *lines]) + "\n")
    for name in TEXTS:
        copies = 1 if name.startswith("sentences") else 250 if "train" in name else 30
        lines = [f"{row['text']} {'ab' * (number % 5)}".strip() for number, row in enumerate(copies * rows)]
        _write(folder / name, "\n".join(lines))
    questions = _questions()
    for name in ("train", "validation"):
        _write(folder / "build" / "data" / "squad" / f"{name}.json", json.dumps({"data": questions}))
    _write_hub(folder, rows, questions)
    for name in ("linear.json", "laptop.json", "server.json", "before.json", "after.json"):
        latency_table().save(folder / name)


def latency_table() -> LatencyTable:
    """Return a made-up table with which any speedup can be reached; the dense models take 40 ms."""

    def curve(kind: str, groups: int) -> LatencyCurve:
        sizes = size_grid(kind, groups)
        return LatencyCurve(tuple(sizes), tuple(1e-5 + 1e-2 * size / groups for size in sizes))

    curves = {"attention": curve("attention", HEADS), "ffn": curve("ffn", WIDTH)}
    return LatencyTable(Environment.current(), 1e-5, curves)


def _write_models(folder: Path) -> None:
    torch.manual_seed(0)
    encoder, decoder = letter_tokenizer(), bare_tokenizer()
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    shape |= {"intermediate_size": WIDTH, "vocab_size": len(encoder), "max_position_embeddings": POSITIONS}
    config = BertConfig(**shape)
    for names, kind in (
        (CLASSIFIERS, "BertForSequenceClassification"),
        (PRETRAINED, "BertModel"),
        (("build/models/minilm-squad",), "BertForQuestionAnswering"),
    ):
        for name in names:
            ziplm.save(getattr(transformers, kind)(config), folder / name, encoder)
    decoder.model_max_length = POSITIONS
    sizes = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": HEADS, "n_inner": WIDTH}
    gpt2 = GPT2Config(vocab_size=len(decoder), bos_token_id=2, eos_token_id=3, **sizes)
    for name in DECODERS:
        ziplm.save(transformers.GPT2LMHeadModel(gpt2), folder / name, decoder)


def _questions() -> list[dict[str, Any]]:
    """Return articles in the format of SQuAD."""
    answers = [{"text": "b c", "answer_start": 2}]
    asked = [{"id": str(number), "question": "d e f", "answers": answers} for number in range(60)]
    return [{"title": "letters", "paragraphs": [{"context": "a b c d e f g", "qas": asked}]}]


def _write_hub(folder: Path, rows: list[dict[str, Any]], articles: list[dict[str, Any]]) -> None:
    """Write GLUE and SQuAD as folders that `datasets` takes for the repositories of the hub."""
    glue, configs = folder / "nyu-mll" / "glue", []
    for task, spec in SPECS.items():
        parts = ["train", *(f"validation{part}" for part in spec.parts)]
        columns = spec.texts[-1]
        made = [{**dict.fromkeys(columns, row["text"]), "label": row["label"]} for row in rows]
        (glue / task).mkdir(parents=True)
        for part in parts:
            write_rows(glue / task / f"{part}.csv", made)
        files = "".join(f"\n  - split: {part}\n    path: {task}/{part}.csv" for part in parts)
        configs.append(f"- config_name: {task}\n  data_files:{files}")
    _write(glue / "README.md", "---\nconfigs:\n" + "\n".join(configs) + "\n---\n")
    (paragraph,) = articles[0]["paragraphs"]
    asked = [
        {
            "context": paragraph["context"],
            "question": each["question"],
            "id": each["id"],
            "title": "letters",
            "answers": {"text": [each["answers"][0]["text"]], "answer_start": [2]},
        }
        for each in paragraph["qas"]
    ]
    for part in ("train", "validation"):
        _write(folder / "rajpurkar" / "squad" / f"{part}.jsonl", "\n".join(map(json.dumps, asked)))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

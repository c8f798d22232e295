"""Tiny tokenizers, writers of small data files, and models whose outputs are known."""

import csv
import json
import string
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer like BERT's whose wordpieces are letters: a word has as many tokens as letters."""
    letters = string.ascii_lowercase
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), ".", ",", "?"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(names, SPECIAL, strict=True)),
    )


def bare_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of letters that, like GPT2's, adds no special tokens and has no padding token."""
    tokenizer = Tokenizer.from_str(letter_tokenizer().backend_tokenizer.to_str())
    tokenizer.post_processor = processors.Sequence([])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[SEP]", model_max_length=16)


def byte_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer like GPT2's, trained on a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def letter_rows() -> list[dict[str, Any]]:
    """Return 80 texts of five one-letter words, with a label that depends on the first letter."""
    letters = torch.randint(26, (80, 5), generator=torch.Generator().manual_seed(0))
    return [{"text": " ".join(chr(97 + int(n)) for n in row), "label": int(row[0]) % 2} for row in letters]


def letter(name: str) -> int:
    """Return the token id of a letter at the beginning of a word."""
    return len(SPECIAL) + string.ascii_lowercase.index(name)


class KnownModel(torch.nn.Module):
    """A model whose outputs are a given function of input ids (batch, tokens)."""

    def __init__(self, answer: Callable[[torch.Tensor], dict[str, torch.Tensor]], **config: Any) -> None:
        super().__init__()
        self.answer = answer
        self.device = torch.device("cpu")
        self.dropout = torch.nn.Dropout()
        settings = {
            "model_type": "bert",
            "vocab_size": 60,
            "max_position_embeddings": 64,
            "pad_token_id": PAD,
            "num_labels": 2,
        }
        settings["label2id"] = {f"LABEL_{i}": i for i in range(config.get("num_labels", 2))}
        self.config = SimpleNamespace(**(settings | config))
        self.modes: list[bool] = []

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
        self.modes.append(self.training or self.dropout.training or torch.is_grad_enabled())
        return SimpleNamespace(**self.answer(input_ids))


def by_first_letter(letters: str, **config: Any) -> KnownModel:
    """Return a classifier that predicts the index of the text's first letter in `letters`."""

    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        classes = torch.tensor([[letter(name) for name in letters]])
        return {"logits": (ids[:, 1:2] == classes).float()}

    return KnownModel(answer, num_labels=len(letters), **config)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write rows in the format of the file's extension, and return the path."""
    names = list(rows[0])
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".tsv":
        lines = [names, *([str(row[name]) for name in names] for row in rows)]
        path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def question(text: str, context: str, *answers: str) -> dict[str, Any]:
    """Return a question of SQuAD, with each answer where it first occurs in the context."""
    found = [{"text": answer, "answer_start": context.index(answer)} for answer in answers]
    return {"id": text, "question": text, "context": context, "answers": found}


def write_squad(path: Path, questions: list[dict[str, Any]]) -> str:
    """Write questions in SQuAD's own format, each with its own paragraph, and return the path."""
    paragraphs = [
        {"context": asked["context"], "qas": [{k: asked[k] for k in ("id", "question", "answers")}]}
        for asked in questions
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)

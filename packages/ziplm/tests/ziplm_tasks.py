"""A tiny model and a small data file for every task."""

from pathlib import Path
from typing import Any

from ziplm.tasks.glue import SPECS
from ziplm_models import tiny_model
from ziplm_text import question, write_rows, write_squad

WORDS = ["ab", "b cd", "the fox", "jumps over the dog", "a", "one two three", "x y z", "b a", "dog", "lazy"]
CLASSES = {
    "token-classification": "BertForTokenClassification",
    "squad": "BertForQuestionAnswering",
    "causal-lm": "GPT2LMHeadModel",
    "masked-lm": "BertForMaskedLM",
    "embedding": "BertModel",
}


def model_for(name: str) -> Any:
    """Return a tiny model with the head for a task."""
    labels = len(SPECS[name].labels) or 1 if name in SPECS else 2
    settings = {} if name in ("causal-lm", "masked-lm", "embedding", "squad") else {"num_labels": labels}
    return tiny_model(CLASSES.get(name, "BertForSequenceClassification"), **settings)


def file_for(name: str, folder: Path, times: int = 1) -> str:
    """Write a file of `times` times ten examples, or a text of as many words, and return its path."""
    words = WORDS * times
    if name in ("causal-lm", "masked-lm"):
        (folder / "text.txt").write_text(" ".join(words * 5))
        return str(folder / "text.txt")
    if name == "squad":
        return write_squad(folder / "a.json", [question(f"{word}?", " ".join(WORDS), word) for word in words])
    if name == "token-classification":
        rows = [{"tokens": text.split(), "tags": [i % 2] * len(text.split())} for i, text in enumerate(words)]
        return write_rows(folder / "a.jsonl", rows)
    first, second = ("sentence1", "question", "question1", "text"), ("sentence2", "sentence", "question2")
    rows = [
        dict.fromkeys(first, text) | dict.fromkeys(second, other) | {"label": number % 2}
        for number, (text, other) in enumerate(zip(words, reversed(words), strict=True))
    ]
    return write_rows(folder / "a.jsonl", rows)

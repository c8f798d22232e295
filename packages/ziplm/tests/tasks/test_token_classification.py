"""Token classification: tags aligned with tokens, entities, metrics of known predictions, and bad rows."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import GPT2Tokenizer
from ziplm import UsageError
from ziplm.tasks import Source, make_task
from ziplm.tasks.heads import IGNORED
from ziplm.tasks.token_classification import entities
from ziplm_text import KnownModel, letter, letter_tokenizer, write_rows

TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
CONFIG = {"num_labels": 4, "label2id": {tag: number for number, tag in enumerate(TAGS)}}


def model_by_letter() -> KnownModel:
    """Return a model that tags words that begin with b, c or d as B-PER, I-PER or B-LOC.

    It tags all later tokens of a word as B-LOC, which must not count.
    """

    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        classes = torch.zeros_like(ids)
        for number, name in enumerate("bcd", start=1):
            classes[ids == letter(name)] = number
        classes[ids > letter("z")] = 3
        return {"logits": torch.nn.functional.one_hot(classes, 4).float()}

    return KnownModel(answer, **CONFIG)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", set()),
        ("B-X I-X O", {("X", 0, 2)}),
        ("B-X B-X", {("X", 0, 1), ("X", 1, 2)}),
        ("I-X I-X", {("X", 0, 2)}),
        ("B-X I-Y", {("X", 0, 1), ("Y", 1, 2)}),
        ("B-X O I-X", {("X", 0, 1), ("X", 2, 3)}),
        ("NOUN NOUN VERB", {("NOUN", 0, 1), ("NOUN", 1, 2), ("VERB", 2, 3)}),
        ("B-A-B I-A-B", {("A-B", 0, 2)}),
    ],
)
def test_entities_of_known_tags(tags: str, found: set[Any]) -> None:
    assert entities(tags.split()) == found


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=12))
def test_entities_cover_every_tagged_word_exactly_once(tags: list[str]) -> None:
    covered = [place for _, begin, end in entities(tags) for place in range(begin, end)]
    assert sorted(covered) == [place for place, tag in enumerate(tags) if tag != "O"]


@pytest.mark.parametrize("names", [("tokens", "ner_tags"), ("words", "tags")])
@pytest.mark.parametrize("extension", ["json", "jsonl", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_the_first_token_of_a_word_carries_its_tag(
    tmp_path: Path, names: tuple[str, str], extension: str, named: bool
) -> None:
    tags: list[Any] = ["B-PER", "I-PER", "O"] if named else [1, 2, 0]
    path = write_rows(tmp_path / f"a.{extension}", [{names[0]: ["Bob", "cyril", "a"], names[1]: tags}])
    splits = make_task("token-classification").load_splits(
        model_by_letter(), letter_tokenizer(), Source(path), 32
    )
    skipped = IGNORED
    assert splits.train[0]["labels"] == [skipped, 1, *[skipped] * 2, 2, *[skipped] * 4, 0, skipped]


def test_metrics_of_known_predictions(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["bob", "carl", "a", "delhi"], "tags": ["B-PER", "I-PER", "O", "B-LOC"]},  # all found
        {
            "tokens": ["bob", "a", "dune"],
            "tags": ["B-PER", "I-PER", "O"],
        },  # one entity too short, one too many
        {"tokens": ["a"], "tags": ["O"]},
    ]
    task, model = make_task("token-classification"), model_by_letter()
    source = Source(eval_file=write_rows(tmp_path / "a.jsonl", rows))
    features = task.load_splits(model, letter_tokenizer(), source, 32).evaluation["eval"]
    # Found: PER, LOC | PER, LOC; wanted: PER, LOC | PER; in common: 2.
    expected = {"f1": 4 / 7, "precision": 2 / 4, "recall": 2 / 3, "accuracy": 6 / 8}
    assert task.evaluate(model, features, batch_size=2) == pytest.approx(expected)


def test_the_tags_of_a_dataset_are_matched_by_name_if_it_has_the_models_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dataset may number its tags in another order than the model."""

    def load_with(names: list[str]) -> list[int]:
        features = datasets.Features(
            tokens=datasets.List(datasets.Value("string")),
            ner_tags=datasets.List(datasets.ClassLabel(names=names)),
        )
        data = datasets.Dataset.from_dict(
            {"tokens": [["a", "b", "c", "d"]], "ner_tags": [[0, 1, 2, 3]]}, features
        )
        monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: data)
        task = make_task("token-classification", dataset="x")
        train = task.load_splits(model_by_letter(), letter_tokenizer(), Source(), 32).train
        return list(train[0]["labels"][1:-1])

    monkeypatch.setattr("ziplm.tasks.hub.hub_answers", lambda: True)
    assert load_with(["B-LOC", "I-PER", "B-PER", "O"]) == [3, 2, 1, 0]
    assert load_with(["w", "x", "y", "z"]) == [0, 1, 2, 3]


def test_byte_level_tokenizers_get_a_space_before_every_word(tmp_path: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, "Ġb", "<|endoftext|>"])}
    GPT2Tokenizer(vocab=vocabulary, merges=[("Ġ", "b")]).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = make_task("token-classification").load_tokenizer(str(tmp_path))
    encoded = tokenizer(["bob", "b"], is_split_into_words=True)
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == ["Ġb", "o", "b", "Ġb"]
    assert encoded.word_ids(0) == [0, 0, 0, 1]


def test_words_beyond_the_maximum_length_are_dropped(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"tokens": ["bob", "delhi"], "tags": [1, 3]}])
    splits = make_task("token-classification").load_splits(
        model_by_letter(), letter_tokenizer(), Source(path), 5
    )
    assert splits.train[0]["labels"] == [IGNORED, 1, IGNORED, IGNORED, IGNORED]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": []}, "row 1 of a.jsonl does not hold two equally long lists"),
        ({"tokens": [], "tags": []}, "two equally long lists"),
        ({"tokens": "a", "tags": [0]}, "two equally long lists"),
        ({"tokens": ["a", ""], "tags": [0, 0]}, "no empty words"),
        ({"tokens": [None], "tags": [0]}, "two equally long lists"),
        ({"tokens": ["a"], "tags": [4]}, r"label 4, but the model knows 0 to 3 \(O, B-PER, I-PER, B-LOC\)"),
        ({"tokens": ["a"], "tags": ["B-ORG"]}, "label 'B-ORG'"),
        ({"text": ["a"], "tags": [0]}, "no column 'tokens', only text, tags"),
        ({"tokens": ["a"], "t": [0]}, "no column ner_tags or .* only tokens, t; name the one"),
    ],
)
def test_the_error_for_a_bad_row_names_the_row_and_the_value(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = write_rows(tmp_path / "a.jsonl", [row])
    with pytest.raises(UsageError, match=message):
        make_task("token-classification").load_splits(model_by_letter(), letter_tokenizer(), Source(path), 32)

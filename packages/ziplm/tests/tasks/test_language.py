"""Language modelling tasks: perplexity against its definition, windows, tokens of long text, and masks."""

import math
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from ziplm import UsageError
from ziplm.errors import NotFinite
from ziplm.tasks import Source, make_task
from ziplm.tasks.heads import IGNORED
from ziplm.tasks.language import Windows, pieces_of, tokens_of
from ziplm_models import POSITIONS, VOCABULARY, tiny_model
from ziplm_text import CLS, MASK, SEP, bare_tokenizer, byte_tokenizer, letter_tokenizer, write_rows

TEXT = "the quick brown fox jumps over the lazy dog.\n\nand again, the dog.\n" * 3
BYTES = byte_tokenizer(TEXT + " a b ab ba\n\n\n" * 20)  # learns " a" and "\n\n" as tokens


def write(tmp_path: Path, text: str) -> Source:
    (tmp_path / "text.txt").write_text(text)
    return Source(str(tmp_path / "text.txt"), str(tmp_path / "text.txt"))


def direct_perplexity(model: torch.nn.Module, ids: torch.Tensor, length: int, stride: int) -> float:
    """Return the perplexity as transformers documents it: window by window, from the model's own loss."""
    total, count, before = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + length, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - before)] = IGNORED
        predicted = int((labels[:, 1:] != IGNORED).sum())
        if predicted:
            with torch.no_grad():
                total += model(ids[:, begin:end], labels=labels).loss.item() * predicted
            count += predicted
        before = end
        if end == ids.shape[1]:
            break
    return math.exp(total / count)


@pytest.mark.parametrize("stride", [1, 5, 7, 16])
@pytest.mark.parametrize("letters", [10, 16, 17, 48, 100])
def test_strided_perplexity_is_as_transformers_documents_it(
    tmp_path: Path, stride: int, letters: int
) -> None:
    model = tiny_model("GPT2LMHeadModel")
    task = make_task("causal-lm", stride=stride)
    text = ("abcdefgh ijklm nopq" * 10)[: letters + letters // 10]
    features = task.load_splits(model, bare_tokenizer(), write(tmp_path, text), 16).evaluation["validation"]
    ids = torch.tensor([tokens_of(bare_tokenizer(), text).tolist()])
    expected = direct_perplexity(model, ids, 16, stride)
    assert task.evaluate(model, features, batch_size=3)["perplexity"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["causal-lm", "masked-lm"])
def test_a_model_of_zeros_has_the_size_of_its_vocabulary_as_perplexity(tmp_path: Path, name: str) -> None:
    model = tiny_model("GPT2LMHeadModel" if name == "causal-lm" else "BertForMaskedLM")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    task = make_task(name)
    features = task.load_splits(model, letter_tokenizer(), write(tmp_path, TEXT), 16).evaluation["validation"]
    assert task.evaluate(model, features)["perplexity"] == pytest.approx(VOCABULARY, rel=1e-5)


def test_the_masked_loss_is_the_mean_of_the_models_own_loss(tmp_path: Path) -> None:
    model, task = tiny_model("BertForMaskedLM"), make_task("masked-lm")
    features = task.load_splits(model, letter_tokenizer(), write(tmp_path, TEXT), 32).evaluation["validation"]
    losses = torch.cat([model(**task.collate([x])).loss[None] for x in features]).detach()
    counts = torch.tensor([sum(label != IGNORED for label in x["labels"]) for x in features])
    expected = float((losses * counts).sum() / counts.sum())
    assert task.evaluate(model, features, batch_size=2)["loss"] == pytest.approx(expected, rel=1e-5)


@given(tokens=st.integers(2, 60), length=st.integers(2, 20), data=st.data())
def test_every_token_counts_in_exactly_one_window(tokens: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, length))
    windows = Windows(np.arange(tokens), length, stride)
    counted = [label for window in windows for label in window["labels"] if label != IGNORED]
    assert counted == list(range(tokens))
    assert all(len(window["input_ids"]) <= length for window in windows)


def test_training_text_is_cut_into_whole_windows(tmp_path: Path) -> None:
    def lengths(length: int) -> list[int]:
        source = write(tmp_path, "abcdefg")
        model = tiny_model("GPT2LMHeadModel")
        splits = make_task("causal-lm").load_splits(model, bare_tokenizer(), source, length)
        assert all(window["input_ids"] == window["labels"] for window in splits.train)
        return [len(window["input_ids"]) for window in splits.train]

    assert lengths(3) == [3, 3]
    assert lengths(7) == [7]
    assert lengths(9) == [7]


@given(text=st.text(st.sampled_from("ab \n\t.'1é世"), max_size=80), size=st.integers(1, 20))
def test_the_pieces_of_a_text_have_the_tokens_of_the_whole_text(text: str, size: int) -> None:
    pieces = list(pieces_of(text, size))
    assert "".join(pieces) == text
    for tokenizer in (BYTES, letter_tokenizer()):
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [
            token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"]
        ] == whole


def test_pieces_of_equal_length_would_have_other_tokens() -> None:
    pieces = [TEXT[start : start + 7] for start in range(0, len(TEXT), 7)]
    cut = [token for piece in pieces for token in BYTES(piece)["input_ids"]]
    assert cut != BYTES(TEXT)["input_ids"]


def test_tokenising_a_long_text_takes_linear_time() -> None:
    def seconds(text: str) -> float:
        started = time.process_time()
        tokens_of(bare_tokenizer(), text)
        return time.process_time() - started

    seconds(TEXT)
    short = min(seconds(TEXT * 200) for _ in range(3))
    assert seconds(TEXT * 1600) < 24 * short  # 8 times the text; quadratic time would be 64


def test_tokenising_a_long_text_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    before = transformers.logging.get_verbosity()  # the command line silences it for the whole process
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_propagation()
    try:
        tokens_of(bare_tokenizer(), TEXT)
        assert not caplog.records
        bare_tokenizer()(TEXT)
        assert caplog.records
    finally:
        transformers.logging.disable_propagation()
        transformers.logging.set_verbosity(before)


def test_the_rows_of_a_table_are_joined_with_the_separator(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "a.jsonl", [{"id": "z", "text": "ab"}, {"id": "z", "text": ""}, {"id": "z", "text": "c"}]
    )
    task = make_task("causal-lm", separator=" . ")
    windows = task.load_splits(tiny_model("GPT2LMHeadModel"), bare_tokenizer(), Source(path), 16).train
    assert bare_tokenizer().decode(windows[0]["input_ids"]).replace("##", "") == "a b . . c"


def test_a_dataset_of_the_hub_has_a_name_and_possibly_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def load_dataset(*names: str, split: str) -> datasets.Dataset:
        asked.append((*names, split))
        return datasets.Dataset.from_dict({"text": ["abc", "", "def"]})

    monkeypatch.setattr("ziplm.tasks.hub.hub_answers", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    for dataset, names in {
        "wikitext:wikitext-2-raw-v1": ("wikitext", "wikitext-2-raw-v1"),
        "x/y": ("x/y", None),
    }.items():
        task = make_task("causal-lm", dataset=dataset)
        splits = task.load_splits(tiny_model("GPT2LMHeadModel"), bare_tokenizer(), Source(), 16)
        assert len(splits.train[0]["input_ids"]) == 6
        assert asked == [(*names, "train"), (*names, "validation")]
        asked.clear()


@pytest.mark.parametrize("name", ["causal-lm", "masked-lm"])
def test_unusable_text_is_refused(tmp_path: Path, name: str) -> None:
    model = tiny_model("GPT2LMHeadModel")

    def load(source: Source, length: int = 16, **settings: Any) -> None:
        make_task(name, **settings).load_splits(model, letter_tokenizer(), source, length)

    with pytest.raises(UsageError, match="holds 0 tokens"):
        load(write(tmp_path, " \n"))
    with pytest.raises(UsageError, match="does not exist"):
        load(Source(str(tmp_path / "none.txt")))
    with pytest.raises(UsageError, match=r"or the setting dataset=NAME:CONFIG"):
        load(Source())
    with pytest.raises(UsageError, match=rf"not between .* and the model's {POSITIONS}"):
        load(write(tmp_path, TEXT), POSITIONS + 1)
    (tmp_path / "b.txt").write_bytes(bytes(range(256)))
    with pytest.raises(UsageError, match="not text in UTF-8"):
        load(Source(str(tmp_path / "b.txt")))


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stride 17 is not between 1 and the length 16"):
        make_task("causal-lm", stride=17).load_splits(
            tiny_model("GPT2LMHeadModel"), bare_tokenizer(), write(tmp_path, TEXT), 16
        )
    with pytest.raises(UsageError, match=r"share of masked tokens is 1.5"):
        make_task("masked-lm", share=1.5)
    with pytest.raises(UsageError, match="no mask token"):
        make_task("masked-lm").load_splits(
            tiny_model("BertForMaskedLM"), bare_tokenizer(), write(tmp_path, TEXT), 16
        )


def test_masks_depend_on_the_seed_and_have_the_shares_of_bert(tmp_path: Path) -> None:
    model, tokenizer, source = tiny_model("BertForMaskedLM"), letter_tokenizer(), write(tmp_path, TEXT * 20)
    splits = [
        make_task("masked-lm", seed=seed).load_splits(model, tokenizer, source, 32) for seed in (0, 0, 1)
    ]
    first, same, other = (list(split.train) for split in splits)
    assert first == same == list(splits[0].train)
    assert first != other
    original = tokens_of(tokenizer, TEXT * 20)
    counts = {"masked": 0, "random": 0, "kept": 0}
    for number, window in enumerate(first):
        ids, labels = window["input_ids"], window["labels"]
        assert (ids[0], ids[-1], labels[0], labels[-1]) == (CLS, SEP, IGNORED, IGNORED)
        for token, label, true in zip(ids[1:-1], labels[1:-1], original[30 * number :], strict=False):
            assert label in (IGNORED, true)
            if label == IGNORED:
                assert token == true
            else:
                counts["masked" if token == MASK else "kept" if token == true else "random"] += 1
        assert any(label != IGNORED for label in labels)
    total = sum(counts.values())
    assert total / (30 * len(first)) == pytest.approx(0.15, abs=0.02)
    assert counts["masked"] / total == pytest.approx(0.8, abs=0.06)
    assert counts["random"] / total == pytest.approx(0.1, abs=0.05)


def test_outputs_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model, task = tiny_model("GPT2LMHeadModel"), make_task("causal-lm")
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(torch.nan)
    features = task.load_splits(model, bare_tokenizer(), write(tmp_path, TEXT), 16).evaluation["validation"]
    with pytest.raises(NotFinite, match="the model's outputs are not finite"):
        task.evaluate(model, features)

"""Classification of the user's own files: finding columns, reading labels, and errors."""

from pathlib import Path
from typing import Any

import pytest
from ziplm import UsageError, save
from ziplm.architectures.checkpoint import load_with_new_head
from ziplm.tasks import Source, Splits, make_task
from ziplm.tasks.columns import classes_in, labels_of
from ziplm.tasks.files import Table
from ziplm_models import tiny_model
from ziplm_pipeline import CLASSIFIER
from ziplm_text import by_first_letter, letter_tokenizer, write_rows

NAMED = {"good": 1, "bad": 0}


def load(path: str, length: int = 32, config: dict[str, Any] | None = None, **source: Any) -> Splits:
    model = by_first_letter("ab", **(config or {}))
    return make_task("classification").load_splits(
        model, letter_tokenizer(), Source(path, path, **source), length
    )


@pytest.mark.parametrize("extension", ["csv", "tsv", "json", "jsonl", "parquet"])
@pytest.mark.parametrize("labels", [(1, 0, 1), ("1", "0", "1"), (1.0, 0.0, 1.0), ("good", "bad", "GOOD")])
def test_labels_are_class_numbers_or_the_models_label_names(
    tmp_path: Path, extension: str, labels: tuple[Any, ...]
) -> None:
    rows = [
        {"id": i, "text": text, "label": y} for i, (text, y) in enumerate(zip("bab", labels, strict=True))
    ]
    splits = load(write_rows(tmp_path / f"d.{extension}", rows), config={"label2id": NAMED})
    assert [example["labels"] for example in splits.train] == [1, 0, 1]
    task = make_task("classification")
    assert task.evaluate(by_first_letter("ab"), splits.evaluation["validation"]) == {
        "accuracy": 1,
        "macro_f1": 1,
    }


def test_accuracy_and_macro_f1_of_known_predictions(tmp_path: Path) -> None:
    rows = [{"text": g, "label": y} for g, y in zip("bbba", (1, 1, 0, 0), strict=True)]
    examples = load(write_rows(tmp_path / "d.csv", rows)).evaluation["validation"]
    found = make_task("classification").evaluate(by_first_letter("ab"), examples)
    assert found == pytest.approx({"accuracy": 0.75, "macro_f1": (2 * 2 / 5 + 2 * 1 / 3) / 2})


@pytest.mark.parametrize(
    ("names", "source", "tokens"),
    [
        (["text", "label"], {}, [2, 6, 3]),
        (["label", "review"], {}, [2, 6, 3]),
        (["sentence1", "sentence2", "label"], {}, [2, 6, 3, 6, 3]),
        (["text", "other", "class"], {"text_columns": ("other", "text")}, [2, 6, 3, 6, 3]),
        (["text", "label", "mark"], {"label_column": "mark"}, [2, 6, 3]),
    ],
)
def test_columns_are_found_by_name_or_taken_as_asked(
    tmp_path: Path, names: list[str], source: Any, tokens: list[int]
) -> None:
    wanted = source.get("label_column", "label")
    row = {name: 1 if name in (wanted, "class") else "b" for name in names}
    assert load(write_rows(tmp_path / "d.jsonl", [row]), **source).train[0] == {
        "input_ids": tokens,
        "token_type_ids": [0] * 3 + [1] * (len(tokens) - 3),
        "attention_mask": [1] * len(tokens),
        "labels": 1,
    }


@pytest.mark.parametrize(
    ("row", "source", "message"),
    [
        ({"text": "a", "label": 2}, {}, "row 2 of d.jsonl has the label 2, but the model knows 0 to 1"),
        ({"text": "a", "label": -1}, {}, "label -1"),
        ({"text": "a", "label": 0.5}, {}, "label 0.5"),
        ({"text": "a", "label": None}, {}, "label None"),
        ({"text": "a", "label": float("nan")}, {}, "label nan"),
        ({"text": "a", "label": [1]}, {}, r"label \[1\]"),
        ({"text": "a", "label": [1.0, 0.0]}, {}, r"label \[1.0, 0.0\]"),  # of several labels
        (
            {"text": "a", "label": "fine"},
            {},
            r"label 'fine', but the model knows 0 to 1 \(LABEL_0, LABEL_1\)",
        ),
        ({"text": "", "label": 1}, {}, "row 2 of d.jsonl has '' in column 'text', where a text is needed"),
        ({"text": " \n", "label": 1}, {}, r"has ' \\n' in column 'text', where a text is needed"),
        ({"text": None, "label": 1}, {}, "has None in column 'text', where a text is needed"),
        ({"text": float("nan"), "label": 1}, {}, "has nan in column 'text', where a text is needed"),
        ({"text": 7, "label": 1}, {}, "has 7 in column 'text', where a text is needed"),
        (
            {"text": "a", "label": 1},
            {"text_columns": ("body",)},
            "no column 'body', only text, label; .*--text-column",
        ),
        ({"text": "a", "label": 1}, {"text_columns": ("a", "b", "c")}, "3 text columns"),
        (
            {"text": "a", "label": 1},
            {"label_column": "y"},
            "no column 'y', only text, label; .*--label-column",
        ),
    ],
)
def test_the_error_for_a_bad_row_names_the_row_and_the_value(
    tmp_path: Path, row: dict[str, Any], source: Any, message: str
) -> None:
    path = write_rows(tmp_path / "d.jsonl", [{"text": "b", "label": 1}, row])
    with pytest.raises(UsageError, match=message):
        load(path, **source)


def test_the_error_for_a_missing_column_lists_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column label or .* only text, grade; name the one"):
        load(write_rows(tmp_path / "a.csv", [{"text": "b", "grade": 1}]))
    with pytest.raises(UsageError, match="no column of text, only label, size"):
        load(write_rows(tmp_path / "b.jsonl", [{"label": 1, "size": 2}]))


def test_data_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", [{"text": "b", "label": 1}])
    with pytest.raises(UsageError, match="length 65 is not between 3 and the model's 64"):
        load(path, length=65)
    with pytest.raises(UsageError, match="length 2 is not between 3"):
        load(path, length=2)
    with pytest.raises(UsageError, match="tokenizer has 60 tokens, but the model 59"):
        load(path, config={"vocab_size": 59})
    with pytest.raises(UsageError, match="the model has 1 output"):
        make_task("classification").load_splits(by_first_letter("a"), letter_tokenizer(), Source(path), 32)
    with pytest.raises(UsageError, match="no data of its own; give --train-file"):
        make_task("classification").load_splits(by_first_letter("ab"), letter_tokenizer(), Source(), 32)


def test_models_that_predict_several_labels_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", [{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    model = tiny_model(CLASSIFIER, problem_type="multi_label_classification")
    save(model, tmp_path / "model", letter_tokenizer())
    refused = "the model is a multi_label_classification, but task .* needs one label for each text"
    for name in ("classification", "sst2"):
        with pytest.raises(UsageError, match=refused):
            make_task(name).load_model(str(tmp_path / "model"))
        with pytest.raises(UsageError, match=refused):
            make_task(name).load_splits(model, letter_tokenizer(), Source(path, path), 32)
    made, settings = make_task("classification").new_head_for(Source(path, path)) or (None, {})
    anew = load_with_new_head(tmp_path / "model", made, settings)  # what a new head predicts is known
    assert len(make_task("classification").load_splits(anew, letter_tokenizer(), Source(path), 32).train) == 2


def test_long_texts_are_cut_and_examples_can_be_sliced(tmp_path: Path) -> None:
    rows = [{"text": "b" * count, "label": 1} for count in (1, 50, 3)]
    train = load(write_rows(tmp_path / "a.csv", rows), length=8).train
    assert [len(example["input_ids"]) for example in train] == [3, 8, 5]
    assert train[1:] == [train[1], train[2]] == train.__getitems__([1, 2])  # type: ignore[attr-defined]
    assert train[-1] == train[2]
    assert train[3:] == []
    with pytest.raises(IndexError):
        train[3]


def test_the_classes_of_a_column_are_read_as_labels_are() -> None:
    def classes(*values: object, own: tuple[str, ...] = ()) -> list[str]:
        table = Table("rows", {"label": list(values)}, {"label": list(own)} if own else {})
        found = classes_in(table, "label")
        numbers = labels_of(table, "label", found["label2id"], len(found["id2label"]))
        assert all(0 <= number < len(found["id2label"]) for number in numbers)
        return list(found["label2id"])

    assert classes("b", "a", "c", "a") == ["a", "b", "c"]
    assert classes("Good", "bad", "good") == ["bad", "Good"]  # labels are read without case
    assert classes(0, 2, 1) == classes("0", "2", "1") == ["0", "1", "2"]
    assert classes(5, 1) == ["0", "1", "2", "3", "4", "5"]  # numbers stay what they are
    assert classes(1, 0, own=("no", "yes")) == ["no", "yes"]
    for wrong in (("a",), ("a", None), ("a", ""), (1.5, 2.5), (10**9, 1), (-1, 1)):
        with pytest.raises(UsageError):
            classes(*wrong)

"""Damaged data files are usage errors in one line, never an unexpected error."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import processors
from ziplm import UsageError
from ziplm.options.source import Source
from ziplm.tasks import make_task
from ziplm.tasks.columns import labels_of, numbers_of
from ziplm.tasks.encoding import require_match
from ziplm.tasks.files import Table, read_table
from ziplm_fuzz.odd_tables import BAD_TEXT
from ziplm_models import tiny_model
from ziplm_text import SEP, letter_tokenizer, write_rows

DEEP, LONG = "[" * 100_000 + "]" * 100_000, "9" * 5000


@pytest.mark.parametrize("value", [DEEP, LONG, '{"a":' * 100_000, '"\\ud800"'])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_that_python_cannot_read_is_refused(tmp_path: Path, name: str, value: str) -> None:
    text = f'{{"text": "a"}}\n{{"text": {value}}}\n' if name == "a.jsonl" else f'[{{"text": {value}}}]'
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{name} is not JSON") as caught:
        read_table(str(tmp_path / name))
    assert len(str(caught.value)) <= 500


def test_a_line_break_in_a_header_does_not_break_the_message(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"a\nb","c\rd"\n1\n')
    with pytest.raises(UsageError) as caught:
        read_table(str(tmp_path / "a.csv"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "column",
    [
        BAD_TEXT,
        pyarrow.array([2**62, 0, 1], pyarrow.int64()).cast(pyarrow.timestamp("us")),
        pyarrow.array([2**62, 0, 1], pyarrow.int64()).cast(pyarrow.duration("s")),
    ],
)
def test_parquet_with_values_that_python_cannot_hold_is_refused(tmp_path: Path, column: Any) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"a.parquet is not a parquet file that can be read"):
        read_table(str(tmp_path / "a.parquet"))


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    columns = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet"
    )
    with pytest.raises(UsageError, match=r"two columns with the same name"):
        read_table(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("value", [10**400, "9" * 400, -(10**400), "1e999", datetime.date(1, 1, 1), [], {}])
def test_labels_and_numbers_out_of_range_are_refused(value: Any) -> None:
    table = Table("a.jsonl", {"label": [value]})
    with pytest.raises(UsageError, match=r"row 1 of a.jsonl") as caught:
        labels_of(table, "label", {"a": 0, "b": 1}, 2)
    assert len(str(caught.value)) <= 500
    with pytest.raises(UsageError, match=r"row 1 of a.jsonl"):
        numbers_of(table, "label")


@pytest.mark.parametrize("path", ["a\0b.csv", "~nobody-of-this-name/a.csv", "x" * 5000 + ".csv", ""])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_table(path)
    assert len(str(caught.value)) <= 500


def test_a_file_that_cannot_be_read_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("a.csv")
    with pytest.raises(UsageError, match="is neither a file nor a folder"):
        read_table(str(tmp_path / "a.csv"))


def test_a_tokenizer_that_fails_on_a_text_is_named(tmp_path: Path) -> None:
    """Without a token for unknown words, the tokenizer raises an exception for some texts only."""
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.model.unk_token = "[NONE]"
    rows = [{"text": "a b", "label": 0}, {"text": "ß", "label": 1}]
    source = Source(validation_file=write_rows(tmp_path / "a.jsonl", rows), train=False)
    model = tiny_model("BertForSequenceClassification", num_labels=2)
    with pytest.raises(UsageError, match="tokenizer"):
        make_task("classification").load_splits(model, tokenizer, source, 16)


def test_a_template_of_special_tokens_cannot_name_a_token_that_the_model_does_not_know() -> None:
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", 999))
    with pytest.raises(UsageError, match="the tokenizer has 1000 tokens, but the model 60 embeddings"):
        require_match(tiny_model("BertModel"), tokenizer, 16)

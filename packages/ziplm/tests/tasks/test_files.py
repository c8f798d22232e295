"""Data files: all formats give the same table, and errors take one line."""

from pathlib import Path

import pytest
from ziplm import UsageError
from ziplm.tasks.files import read_table, read_text
from ziplm_text import write_rows

ROWS = [
    {"text": 'He said "no', "label": "1"},
    {"text": "a, b; c'", "label": "0"},
    {"text": "line separator\u2028within", "label": "1"},
]


@pytest.mark.parametrize("extension", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_columns(tmp_path: Path, extension: str) -> None:
    table = read_table(write_rows(tmp_path / f"a.{extension}", ROWS))
    assert table.columns == {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert len(table) == 3


def test_quotes_in_a_tab_separated_file_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('a\tb\n"x\t1\n y" \t2\n')
    assert read_table(str(tmp_path / "a.tsv")).columns == {"a": ['"x', ' y" '], "b": ["1", "2"]}


def test_quotes_in_a_comma_separated_file_enclose_a_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"x, ""y""\nz",1\n')
    assert read_table(str(tmp_path / "a.csv")).columns == {"a": ['x, "y"\nz'], "b": ["1"]}


@pytest.mark.parametrize(
    "text", ['[{"a": 1}, {"b": 2}]', '{"data": [{"a": 1}, {"b": 2}]}', '{"a": 1}\n{"b": 2}']
)
def test_json_is_a_list_or_lines_and_missing_values_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_table(str(tmp_path / "a.json")).columns == {"a": [1, None], "b": [None, 2]}


def test_windows_line_ends_and_byte_order_marks_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfa\tb\r\nx\t1\r\n")
    assert read_table(str(tmp_path / "a.tsv")).columns == {"a": ["x"], "b": ["1"]}


def test_broken_rows_are_skipped_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nx\ny\t2\n")
    assert read_table(str(tmp_path / "a.tsv"), skip_broken=True).columns == {"a": ["y"], "b": ["2"]}
    with pytest.raises(UsageError, match=r"row 1 of .*a.tsv has 1 columns, but there are 2 names \(a, b\)"):
        read_table(str(tmp_path / "a.tsv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"x", "has the extension '.docx'; give a file that ends with .csv"),
        ("a", b"x", "has the extension ''"),
        ("a.csv", b"", "holds no examples"),
        ("a.csv", b"a,b\n", "holds no examples"),
        ("a.tsv", b"a\tb\n", "holds no examples"),
        ("a.json", b"[]", "holds no examples"),
        ("a.jsonl", b"\n\n", "holds no examples"),
        ("a.csv", b"a,b\n1,2,3\n", "row 1 of .* has 3 columns, but there are 2"),
        ("a.csv", b'a,b\n"x,1\n', "is not CSV: unexpected end of data"),
        ("a.csv", b"a,a\n1,2\n", "two columns with the same name"),
        ("a.csv", b"a\n\xff\xfe\n", "not text in UTF-8: byte 2 is 0xff"),
        ("a.tsv", b"a\tb\nx\0y\t1\n", "zero byte"),
        ("a.json", b"{'a': 1}", "is not JSON"),
        ("a.json", b'{"a": 1}\n{"a": ', "line 2 of .* is not JSON"),
        ("a.json", b"3", "holds a int"),
        ("a.json", b"[1]", "example 1 of .* is a int"),
        ("a.jsonl", b'{"a": 1}\n{"a" 2}\n', "line 2 of .* is not JSON"),
        ("a.parquet", b"PAR1 not really", "is not a parquet file"),
        ("a.parquet", b"", "is not a parquet file"),
    ],
)
def test_errors_take_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read_table(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_text(tmp_path / "nothing.txt")
    with pytest.raises(UsageError, match="is a folder"):
        read_table(str(tmp_path))

"""Read files of examples, with an error that says what is wrong if a file cannot be read."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet  # type: ignore[import-untyped]

from ziplm.architectures.untrusted import reported
from ziplm.errors import UsageError, one_line
from ziplm.files import parse_json


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; `where` is the name of their file or dataset, for error messages."""

    where: str
    columns: dict[str, list[Any]]
    classes: dict[str, list[str]] = field(default_factory=dict)
    """Names of the classes of a label column, in the order of their numbers, if they are known."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))


def read_table(path: str, headerless: Sequence[str] = (), skip_broken: bool = False) -> Table:
    """Read a csv, tsv, json, jsonl or parquet file.

    As in the files of GLUE, tab-separated values are not quoted: a quote is an ordinary character.

    Args:
        path: the file; its extension decides the format.
        headerless: column names of a tsv file without a header. A first line that contains the last of these
            names is a header, and is used instead.
        skip_broken: skip rows of a tsv file that have too few or too many columns.

    Raises:
        UsageError: if the file does not exist, has an unknown extension, is malformed, or has no examples.
    """
    file = existing(path)
    readers: dict[str, Callable[[], dict[str, list[Any]]]] = {
        ".csv": lambda: _read_csv(file),
        ".tsv": lambda: _read_tsv(file, headerless, skip_broken),
        ".json": lambda: _records_as_columns(file, read_json_records(file)),
        ".jsonl": lambda: _records_as_columns(file, _json_lines(file, read_text(path))),
        ".parquet": lambda: _read_parquet(file),
    }
    if file.suffix.lower() not in readers:
        raise UsageError(
            f"{path} has the extension {file.suffix!r}", f"give a file that ends with {', '.join(readers)}"
        )
    table = Table(file.name, readers[file.suffix.lower()]())
    if not len(table):
        raise UsageError(f"{path} holds no examples", "give a file with at least one example")
    return table


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8, without its byte order mark and with its line endings unchanged.

    Raises:
        UsageError: if the file does not exist, or is not UTF-8 text.
    """
    data = existing(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not text in UTF-8: byte {error.start} is {data[error.start]:#04x}",
            "save it as UTF-8 text",
        ) from error
    if "\0" in text:
        raise UsageError(
            f"{path} holds a zero byte at {text.index(chr(0))}, so it is not text", "give a text file"
        )
    return text


def existing(path: str | Path) -> Path:
    """Return the path of a file, with ``~`` expanded; raise UsageError unless the file exists."""
    with reported(f"{str(path)!r} is not a path", "check the path", UsageError):
        file = Path(path).expanduser()
        is_file, is_folder, exists = file.is_file(), file.is_dir(), os.path.lexists(file)
    if not is_file:
        other = "is a folder, not a file" if is_folder else "is neither a file nor a folder"
        raise UsageError(f"{path} {other if exists else 'does not exist'}", "check the path")
    return file


def read_json_records(file: Path) -> list[Any]:
    """Read the examples of a json file: a list, an object with a list under "data", or one object per line.

    Raises:
        UsageError: if the file is not JSON, or holds no list of examples.
    """
    text = read_text(file)
    try:
        content = parse_json(text)
    except ValueError as error:
        if "\n" in text.strip() and str(error).startswith("Extra data"):
            return _json_lines(file, text)
        raise UsageError(f"{file} is not JSON: {one_line(error)}", "correct the file") from error
    if isinstance(content, dict):
        content = content.get("data", [content])
    if not isinstance(content, list):
        raise UsageError(f"{file} holds a {type(content).__name__}", "give a list of objects")
    return content


def _json_lines(file: Path, text: str) -> list[Any]:
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                records.append(parse_json(line))
            except ValueError as error:
                raise UsageError(
                    f"line {number} of {file} is not JSON: {one_line(error)}", "correct the line"
                ) from error
    return records


def _records_as_columns(file: Path, records: list[Any]) -> dict[str, list[Any]]:
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise UsageError(
                f"example {number} of {file} is a {type(record).__name__}", "give objects with named values"
            )
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _read_csv(file: Path) -> dict[str, list[Any]]:
    try:
        rows = [row for row in csv.reader(io.StringIO(read_text(file), newline=""), strict=True) if row]
    except csv.Error as error:
        raise UsageError(
            f"{file} is not CSV: {one_line(error)}", "correct the file, or give a .jsonl file"
        ) from error
    return _rows_as_columns(file, rows[:1], rows[1:], False)


def _read_tsv(file: Path, headerless: Sequence[str], skip_broken: bool) -> dict[str, list[Any]]:
    rows = [line.rstrip("\r").split("\t") for line in read_text(file).split("\n") if line.rstrip("\r")]
    if headerless and rows and headerless[-1] not in rows[0]:
        return _rows_as_columns(file, [list(headerless)], rows, skip_broken)
    return _rows_as_columns(file, rows[:1], rows[1:], skip_broken)


def _rows_as_columns(
    file: Path, header: list[list[str]], rows: Iterable[list[str]], skip_broken: bool
) -> dict[str, list[Any]]:
    if not header:
        return {}
    names = header[0]
    _require_distinct(file, names)
    kept = []
    for number, row in enumerate(rows, start=1):
        if len(row) == len(names):
            kept.append(row)
        elif not skip_broken:
            raise UsageError(
                f"row {number} of {file} has {len(row)} columns, but there are {len(names)} names "
                f"({', '.join(names)})",
                "correct the row, or give a .jsonl file",
            )
    return dict(zip(names, map(list, zip(*kept, strict=True)), strict=True)) if kept else {}


def _read_parquet(file: Path) -> dict[str, list[Any]]:
    # Besides its own exceptions, pyarrow raises those of Python for values that Python cannot hold.
    with reported(f"{file} is not a parquet file that can be read", "write it again", UsageError):
        table = pyarrow.parquet.ParquetFile(file).read(use_threads=False)
        _require_distinct(file, table.column_names)
        return table.to_pydict()


def _require_distinct(file: Path, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise UsageError(
            f"{file} has two columns with the same name among {', '.join(names)}", "rename one of them"
        )

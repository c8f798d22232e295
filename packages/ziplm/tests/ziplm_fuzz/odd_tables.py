"""Parquet files that are valid, but hold columns that no task expects."""

import datetime
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet

TEXTS = ["a b", "c d", "e"]
BAD_TEXT = pyarrow.StringArray.from_buffers(
    3,
    pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])),
    pyarrow.py_buffer(b"\xff\xfe\x80"),
)
COLUMNS: dict[str, pyarrow.Array] = {
    "text": pyarrow.array(TEXTS),
    "bad text": BAD_TEXT,
    "bytes": pyarrow.array([b"\xff", b"", None]),
    "whole": pyarrow.array([0, 1, 0]),
    "huge": pyarrow.array([2**63 - 1, -(2**63), 0]),
    "unsigned": pyarrow.array([2**64 - 1, 0, 1], pyarrow.uint64()),
    "real": pyarrow.array([0.0, float("nan"), float("inf")]),
    "half": pyarrow.array([0.0, 1.0, 1.0], pyarrow.float32()),
    "nothing": pyarrow.nulls(3),
    "holes": pyarrow.array(["a", None, "b"]),
    "lists": pyarrow.array([["a", "b"], [], None]),
    "tags": pyarrow.array([[0, 1], [1], [0]]),
    "structs": pyarrow.array([{"text": ["a"], "answer_start": [0]}, None, {"text": [], "answer_start": []}]),
    "maps": pyarrow.array([[("a", 1)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "dates": pyarrow.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "times": pyarrow.array([-(2**63) + 1, 0, 2**63 - 1], pyarrow.int64()).cast(pyarrow.timestamp("ns")),
    "far": pyarrow.array([-(2**62), 0, 2**62], pyarrow.int64()).cast(pyarrow.timestamp("s")),
    "long": pyarrow.array([2**62, 0, 1], pyarrow.int64()).cast(pyarrow.duration("s")),
    "decimals": pyarrow.array([None, None, None], pyarrow.decimal128(38, 10)),
    "words": pyarrow.array(TEXTS).dictionary_encode(),
    "truth": pyarrow.array([True, False, None]),
}
NAMES = [
    "text",
    "label",
    "tokens",
    "tags",
    "score",
    "context",
    "question",
    "answers",
    "a\nb",
    "",
    "text",
    "\0",
]


def odd_parquet(file: Path, dice: random.Random) -> None:
    """Write a table of a few of these columns, under the usual names or odd ones."""
    count = dice.choice([0, 1, 2, 2, 2, 3])
    columns = [dice.choice(list(COLUMNS.values())) for _ in range(count)]
    names = NAMES[:count] if dice.random() < 0.6 else [dice.choice(NAMES) for _ in range(count)]
    table = pyarrow.Table.from_arrays(columns, names=names)
    if dice.random() < 0.1:
        table = table.slice(0, 0)
    try:
        pyarrow.parquet.write_table(table, file)
    except (pyarrow.ArrowException, ValueError):  # some of these types have no form in parquet
        file.write_bytes(b"PAR1" + dice.randbytes(20) + b"PAR1")

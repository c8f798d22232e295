"""Damage one file: its bytes, its structure (JSON, TOML, CSV, safetensors headers, parquet), or its place."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ziplm_fuzz.odd_graphs import mutate_onnx
from ziplm_fuzz.odd_tables import odd_parquet
from ziplm_fuzz.odd_values import NESTED, odd_value, with_placeholders

ODD_TOML = [
    *("0", "-1", "1.5", "inf", "nan", "true", '""', '"x"', "[]", "{}", "1e308", "9" * 400, "[1, 'a', []]"),
    *(
        "2020-01-01",
        '"../../escaped"',
        '"\\u0000"',
        '"\\uD800"',
        "[" * 100_000,
        "[" * 500 + "]" * 500,
        "''' ",
    ),
]
ODD_CELLS = [
    "",
    "\0",
    "x" * 200_000,
    "9" * 400,
    "nan",
    "inf",
    '"',
    '"a\nb"',
    "\ud800",
    "-1",
    "1e999",
    "é",
    "\ufeff",
]


def mutate(file: Path, outside: Path, dice: random.Random) -> str:
    """Damage a file in place, and return what was done.

    Args:
        file: the file.
        outside: a folder that no loader may touch; some damaged values point into it.
        dice: source of randomness.
    """
    if dice.random() < 0.03:
        return replace_file(file, outside, dice)
    structure = STRUCTURES.get(file.suffix)
    if structure is None or dice.random() < 0.3:
        return mutate_bytes(file, dice)
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        structure(file, outside, dice)
    if dice.random() < 0.05:
        mutate_bytes(file, dice)
    return structure.__name__


def replace_file(file: Path, outside: Path, dice: random.Random) -> str:
    """Put something else where the file was."""
    file.unlink()
    how = dice.choice(["nothing", "folder", "dangling link", "loop", "link outside", "pipe", "empty"])
    if how == "folder":
        file.mkdir()
    elif how == "dangling link":
        file.symlink_to("nowhere")
    elif how == "loop":
        file.symlink_to(file.name)
    elif how == "link outside":
        file.symlink_to(outside / "secret")
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "empty":
        file.touch()
    return f"replaced by {how}"


def mutate_bytes(file: Path, dice: random.Random) -> str:
    """Change bytes at random places."""
    data = bytearray(file.read_bytes()) or bytearray(b"\0")
    for _ in range(dice.choice([1, 1, 2, 8, 32])):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice([1, 1, 2, 8, 64, len(data)]))
        how = dice.randrange(7)
        if how == 0 and data:
            data[start % len(data)] ^= 1 << dice.randrange(8)
        elif how == 1:
            del data[start:end]
        elif how == 2:
            data[start:start] = dice.randbytes(dice.choice([1, 4, 100]))
        elif how == 3:
            data[start:end] = dice.randbytes(end - start)
        elif how == 4:
            data[start:start] = data[start:end]
        elif how == 5:
            data[start:end] = bytes(end - start)
        elif how == 6:
            data[start:end] = dice.choice([b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"}", b"9" * 30, b"\r\n"])
    file.write_bytes(data)
    return "bytes"


def mutate_json(file: Path, outside: Path, dice: random.Random) -> None:
    """Change a value somewhere in a JSON document."""
    text = _text(file)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    file.write_bytes(with_placeholders(json.dumps(changed(document, outside, dice))))


def mutate_json_lines(file: Path, outside: Path, dice: random.Random) -> None:
    """Change a value in one line of a file of JSON lines."""
    lines = _text(file).split("\n")
    number = dice.randrange(len(lines))
    try:
        lines[number] = json.dumps(changed(json.loads(lines[number]), outside, dice))
    except (ValueError, RecursionError):
        lines.insert(number, dice.choice(["{", "[]", "1", "null", '"x"', json.dumps(NESTED)]))
    file.write_bytes(with_placeholders("\n".join(lines)))


def mutate_safetensors(file: Path, outside: Path, dice: random.Random) -> None:
    """Change a value in the header of a safetensors file; its length is usually corrected."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return
    entry = dice.choice(list(header)) if isinstance(header, dict) and header else None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if entry is not None and isinstance(header[entry], dict) and dice.random() < 0.6:
        key = dice.choice(["dtype", "shape", "data_offsets"])
        odd = {
            "dtype": ["F64", "I8", "BF16", "BOOL", "F8_E4M3", "X", None, "U64"],
            "shape": [[], [0], [-1], [2**63], [10**6, 10**6], [1], None, [2**32, 2**32], [1.5]],
            "data_offsets": [[0, 0], [0, 2**63], [8, 4], [-1, 1], [0], None, [0, len(data)]],
        }
        header[entry][key] = dice.choice(odd[key])
    elif isinstance(metadata, dict) and "scalars" in metadata and dice.random() < 0.6:
        metadata["scalars"] = changed_text(metadata["scalars"], outside, dice)
    else:
        header = changed(header, outside, dice)
    made = with_placeholders(json.dumps(header))
    size = len(made) if dice.random() < 0.9 else dice.choice([0, 1, 2**63, 10**9, len(made) - 1])
    file.write_bytes(size.to_bytes(8, "little") + made + data[8 + length :])


def mutate_toml(file: Path, outside: Path, dice: random.Random) -> None:
    """Change one line of a TOML file."""
    lines = _text(file).split("\n")
    number = dice.randrange(len(lines))
    name = lines[number].partition("=")[0].strip() or "x"
    value = dice.choice([*ODD_TOML, f'"{outside}/escaped"'])
    choices = [f"{name} = {value}"] * 6 + [
        "",
        f"[{name}]",
        f"{name}.a.b = 1",
        f"[[{name}]]",
        lines[number] * 2,
        value,
    ]
    lines[number : number + dice.choice([0, 1, 1, 1])] = [dice.choice(choices)]
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))


def mutate_cells(file: Path, outside: Path, dice: random.Random) -> None:
    """Change one cell, or the number of cells in one line, of a file of separated values."""
    separator = "\t" if file.suffix == ".tsv" else ","
    lines = [line.split(separator) for line in _text(file).split("\n")]
    line = dice.choice([*lines[:2], dice.choice(lines)])
    how = dice.randrange(5)
    if how == 0:
        line.append(dice.choice(ODD_CELLS))
    elif how == 1 and line:
        line.pop(dice.randrange(len(line)))
    elif how == 2:
        lines.insert(dice.randrange(len(lines)), list(line))
    elif line:
        line[dice.randrange(len(line))] = dice.choice(ODD_CELLS)
    file.write_bytes("\n".join(separator.join(line) for line in lines).encode("utf-8", "surrogatepass"))


def mutate_parquet(file: Path, outside: Path, dice: random.Random) -> None:
    """Write a parquet file that is valid, but has odd columns."""
    odd_parquet(file, dice)


STRUCTURES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    ".json": mutate_json,
    ".jsonl": mutate_json_lines,
    ".safetensors": mutate_safetensors,
    ".toml": mutate_toml,
    ".onnx": mutate_onnx,
    ".csv": mutate_cells,
    ".tsv": mutate_cells,
    ".parquet": mutate_parquet,
}


def changed(document: Any, outside: Path, dice: random.Random) -> Any:
    """Return a JSON document with one value, key or list changed."""
    places = list(_places(document))
    if not places:
        return odd_value(outside, dice)
    parent, key = dice.choice(places)
    value, how = parent[key], dice.randrange(10)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, dict):
        parent[dice.choice(["", "x", "auto_map", "\ud800", "a/b", str(key).upper()])] = parent.pop(key)
    elif how == 2:
        parent[key] = dice.choice([[value], {"x": value}, str(value)])
    elif how == 3:
        other, place = dice.choice(places)
        parent[key] = other[place] if not isinstance(other[place], dict | list) else value
    elif how == 4 and isinstance(value, list):
        parent[key] = value * dice.choice([0, 2, 1000]) if len(value) < 100 else value[::-1]
    elif how == 5 and isinstance(value, int | float):
        third = value // 3 if isinstance(value, int) else value / 3  # a long integer has no float
        parent[key] = dice.choice([value + 1, value - 1, -value, value * 2, value * 1000, third])
    else:
        parent[key] = odd_value(outside, dice)
    return document


def changed_text(text: Any, outside: Path, dice: random.Random) -> Any:
    """Return a text that holds JSON with a value in it changed, unless it is damaged already."""
    try:
        document = changed(json.loads(text), outside, dice)
    except (ValueError, TypeError, RecursionError):
        return odd_value(outside, dice)
    return with_placeholders(json.dumps(document)).decode("utf-8", "surrogatepass")


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return all places of a document, as a parent and a key; those near the root more often."""
    found, queue = [], [(document, 0)]
    while queue and len(found) < 5000:
        parent, depth = queue.pop(0)
        keys = (
            list(parent)
            if isinstance(parent, dict)
            else range(len(parent))
            if isinstance(parent, list)
            else ()
        )
        for key in keys:
            found += [(parent, key)] * max(1, 4 - 2 * depth)
            queue.append((parent[key], depth + 1))
    return found


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")

"""Writing files atomically: a file appears complete under its final name, or not at all."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors

from ziplm.errors import BadRun


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, document: Any) -> None:
    """Write a document of plain values as JSON."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a document written by `write_json`; raise BadRun if the file is damaged."""
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise damaged(path) from error


def parse_json(data: str | bytes) -> Any:
    """Parse JSON from a file that may be damaged.

    Raises:
        ValueError: if it is not JSON in UTF-8, is nested too deeply, holds a number of thousands of digits,
            or half of a surrogate pair, which is no text and could not be written again.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text.lower():  # only an escape can be half of a pair
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half of a surrogate pair") from None
    return content


def write_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Write tensors by name as safetensors."""
    from safetensors.torch import save_file

    with written_whole(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)


def read_tensors(path: Path) -> dict[str, Any]:
    """Read tensors written by `write_tensors`; raise BadRun if the file is damaged."""
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise damaged(path) from error


def damaged(path: Path) -> BadRun:
    """Return the error for a state file that cannot be read."""
    return BadRun(f"{path} is damaged", "delete it and run the command again")

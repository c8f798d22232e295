"""Files that appear whole or not at all."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ziplm.errors import BadRun


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder, which becomes `path` when the block ends without an error."""
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
    """Write a document of plain values."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRun(f"{path} is damaged", "delete it and run the command again") from error

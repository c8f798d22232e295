"""Files that are written completely or not at all, also if the power fails."""

import os
import uuid
from pathlib import Path

# Marks what is being written. Nothing else ends in it, so that leftovers of a killed process are recognised.
PARTIAL = ".ziplm-partial"


def replace_text(path: Path, text: str) -> None:
    """Replace the contents of a file in one step, so that a reader finds either the old or the new ones."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)  # exists only after an interruption or an error


def _sync_folder(folder: Path) -> None:
    """Make a new name in `folder` durable, where the system allows folders to be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

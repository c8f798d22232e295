"""Reads the commands in the Markdown files of the repository."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PROGRAMS = ("ziplm", "torchrun", "nox", "pip", "python", "latency-profiler")
"""Programs that the commands of the documentation call."""
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def documents() -> list[Path]:
    """Return all Markdown files of the repository that readers see, in a fixed order."""
    return sorted(
        [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("*/README.md")]
    )


def blocks(document: Path) -> list[Block]:
    """Return the fenced blocks of a document."""
    return [Block(*found) for found in FENCE.findall(document.read_text(encoding="utf-8"))]


def console_commands(document: Path) -> list[str]:
    """Return the commands of a document's ``console`` blocks, each as text for a shell."""
    return [
        command for block in blocks(document) if block.language == "console" for command in _split(block.text)
    ]


def _split(text: str) -> Iterator[str]:
    """Yield the commands of a block; later lines of a command are continued lines, or start with ``> ``."""
    command: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command)
            command = [line[2:]]
        else:
            command.append(line.removeprefix("> "))
    if command:
        yield "\n".join(command)


def inline_code(document: Path) -> list[str]:
    """Return the inline code of a document, outside of blocks and comments."""
    return INLINE.findall(COMMENT.sub("", FENCE.sub("", document.read_text(encoding="utf-8"))))

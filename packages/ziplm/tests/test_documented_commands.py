"""Every command in the documentation is run: by the tests, by ``nox -s docs``, or by a benchmark.

``bash`` and ``python`` blocks are run by the tests, ``console`` blocks by docs-site/test_commands.py. Here,
all of them are read, and the commands of ziplm are parsed, which takes a moment.
"""

import re
import shlex
from pathlib import Path

import pytest
import rich_click as click
from ziplm.cli import COMMANDS, main
from ziplm_commands import PROGRAMS, ROOT, blocks, console_commands, documents, inline_code

SHOWN = {"json", "text"}
"""Languages of blocks that hold data or drawings, and no commands."""
RUN = {"bash", "python", "console"}
SHELL_WORDS = ("for", "do", "done")
ALL = [pytest.param(document, id=str(document.relative_to(ROOT))) for document in documents()]
MAIN = click.Context(main, info_name="ziplm")


def simple_commands(text: str) -> list[list[str]]:
    """Return the commands that a text for a shell consists of, as words, without assignments and loops.

    Variables are 1.
    """
    text = re.sub(r"\s#.*|\$\(.*?\)", "", text.replace("\\\n", " "))
    text = re.sub(r"\$\w+", "1", text)
    found = []
    for part in re.split(r"&&|;|\n", text):
        words = shlex.split(part)
        while words and words[0] in SHELL_WORDS:
            words = [] if words[0] == "for" else words[1:]
        if words and not re.fullmatch(r"\w+=.*", words[0]):
            found.append(words)
    return found


def ziplm_words(words: list[str]) -> list[str] | None:
    """Return the part of a command that ziplm parses, or None."""
    if words[0] == "torchrun" and "ziplm" in words:
        words = words[words.index("ziplm") :]
    return words[1:] if words[0] == "ziplm" else None


@pytest.mark.parametrize("document", ALL)
def test_every_block_is_run_or_holds_no_command(document: Path) -> None:
    for block in blocks(document):
        assert block.language in RUN | SHOWN, (
            f"a block in {block.language!r} is run by nothing:\n{block.text}"
        )
        if block.language in SHOWN:
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), "commands belong into console blocks"
        if block.language == "console":
            assert block.text.startswith("$ "), block.text


@pytest.mark.parametrize("document", ALL)
def test_every_program_of_a_console_block_is_known(document: Path) -> None:
    for command in console_commands(document):
        for words in simple_commands(command):
            assert words[0] in PROGRAMS, f"docs-site/test_commands.py does not know how to run {words[0]}"
            outside = [word for word in words if word.startswith(("/", "~", ".."))]
            assert not outside, "commands are run, and must stay in their folder"


@pytest.mark.parametrize("document", ALL)
def test_every_command_of_ziplm_parses(document: Path) -> None:
    for command in console_commands(document):
        for words in simple_commands(command):
            arguments = ziplm_words(words)
            if arguments is not None:
                name, *rest = arguments
                found = main.get_command(MAIN, name)
                assert found is not None, f"ziplm has no command {name}"
                found.make_context(name, rest, parent=MAIN)


@pytest.mark.parametrize("document", ALL)
def test_options_in_running_text_exist(document: Path) -> None:
    for code in inline_code(document):
        words = code.split()
        if words[0] != "ziplm" or len(words) < 2 or words[1].startswith("-"):
            continue
        assert words[1] in COMMANDS, code
        command = main.get_command(MAIN, words[1])
        assert command is not None
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        used = {word for word in words[2:] if word.startswith("-")}
        assert used <= known | {"--help"}, code


def test_wrong_commands_would_be_noticed() -> None:
    """Control of the tests above."""
    assert simple_commands("for X in 1 2; do\n  ziplm plot a \\\n    b; done && rm -r c  # gone") == [
        ["ziplm", "plot", "a", "b"],
        ["rm", "-r", "c"],
    ]
    assert ziplm_words(["torchrun", "-m", "ziplm", "compress", "m"]) == ["compress", "m"]
    assert sum(len(console_commands(document)) for document in documents()) > 80
    assert sum(code.startswith("ziplm ") for document in documents() for code in inline_code(document)) > 30

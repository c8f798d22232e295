"""Every example on a help page is a command that ``ziplm`` accepts."""

import re
import shlex
from typing import Any

import pytest
import rich_click as click
from ziplm.cli import COMMANDS, main
from ziplm.cli.options import given
from ziplm.options.options import Options
from ziplm.options.sections import EssentialOptions

MAIN = click.Context(main, info_name="ziplm")


def command_named(name: str) -> click.Command:
    found = main.get_command(MAIN, name)
    assert found is not None
    return found


def examples_of(name: str) -> list[list[str]]:
    """Return the examples at the end of a command's help page, each as a list of words."""
    epilog = str(command_named(name).epilog)
    text = re.sub(r"^Examples?:", "", epilog).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def parsed(words: list[str]) -> tuple[str, click.Context]:
    """Parse an example with the command's own parser, without running it; return its name and its context."""
    words = words[words.index("ziplm") :]  # after torchrun … -m
    name = words[1]
    command = command_named(name)
    return name, command.make_context(name, words[2:], parent=MAIN)


ALL = [pytest.param(name, words, id=" ".join(words)) for name in COMMANDS for words in examples_of(name)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_on_its_help_page(name: str) -> None:
    found = examples_of(name)
    assert found
    for words in found:
        assert "ziplm" in words
        assert parsed(words)[0] == name


@pytest.mark.parametrize(("name", "words"), ALL)
def test_an_example_parses(name: str, words: list[str]) -> None:
    _, context = parsed(words)
    assert context.params
    assert context.args == []


@pytest.mark.parametrize(("name", "words"), [each for each in ALL if each.values[0] == "compress"])
def test_an_example_of_compress_has_options_that_go_together(name: str, words: list[str]) -> None:
    _, context = parsed(words)
    said: dict[str, Any] = {
        key: value for key, value in given(context).items() if key in Options.model_fields
    }
    if context.params["config_file"] is None:
        assert Options.of(said).targets()
    else:
        assert not said.keys() & EssentialOptions.model_fields.keys()


def test_a_wrong_example_would_be_noticed() -> None:
    """Control of the tests above."""
    with pytest.raises(click.NoSuchOption):
        parsed(["ziplm", "compress", "m", "--speeedup", "2"])
    with pytest.raises(click.BadParameter):
        parsed(["ziplm", "compress", "m", "--regime", "fast"])
    with pytest.raises(click.MissingParameter):
        parsed(["ziplm", "benchmark", "m"])

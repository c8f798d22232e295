"""Options that several commands share. Defaults are those of `Config`, and stand nowhere else."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from ziplm.config import DTYPES, Config

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(Config) if field.default is not MISSING}


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """A click option whose default is the one of the `Config` field of its name."""
    field = next(name for name in names if name.startswith("--")).split("/")[0].strip("-").replace("-", "_")
    default = _DEFAULTS[field]
    if default not in (None, ()):
        settings = {"default": default, "show_default": True, **settings}
    return click.option(*names, **settings)


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one, in the order in which --help lists them."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def given(context: click.Context) -> dict[str, Any]:
    """What was said on the command line, by name, without defaults."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }


data_options = options(
    option("--train-file", metavar="FILE", help="Examples to calibrate on: csv, tsv, json, parquet or text."),
    option("--validation-file", metavar="FILE", help="Examples to evaluate on."),
    option("--eval-file", metavar="FILE", help="Evaluate on this instead."),
    option("--text-column", multiple=True, metavar="NAME", help="Column of text; twice for pairs."),
    option("--label-column", metavar="NAME", help="Column of labels."),
    option(
        "--max-length", type=click.IntRange(min=2), help="Longest example in tokens.  [default: as below]"
    ),
)

environment_options = options(
    option("--batch-size", type=click.IntRange(min=1), help="Of the inputs that are measured."),
    option("--sequence-length", type=click.IntRange(min=1), help="Of the inputs that are measured."),
    option("--threads", type=click.IntRange(min=1), help="Of torch while measuring.  [default: torch's]"),
    option("--device", help="Such as cpu or cuda:0."),
    option("--dtype", type=click.Choice(list(DTYPES)), help="Of the models that are measured."),
    option("--engine", type=click.Choice(["eager", "compile"]), help="What runs the models."),
    option("--attention", type=click.Choice(["eager", "sdpa", "flash_attention_2"]), help="Implementation."),
    option("--clock", type=click.Choice(["wall", "cpu"]), help="cpu on machines with other load."),
)

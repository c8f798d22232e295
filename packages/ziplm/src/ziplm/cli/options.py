"""Command line options made from the fields of `Options`, which hold their defaults and help texts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import rich_click as click
from click.core import ParameterSource

from ziplm.options.fields import SECTIONS, shown
from ziplm.options.options import Options
from ziplm.options.setting import Setting

Command = TypeVar("Command", bound=Callable[..., Any])

ENVIRONMENT = (
    "regime",
    "input_length",
    "prompt_length",
    "new_tokens",
    "batch_size",
    "threads",
    "device",
    "dtype",
    "engine",
    "quantize",
    "attention",
    "clock",
)
SHORT = {"output": "-o"}


def names_in(section: str) -> list[str]:
    """Return the names of the options in a section."""
    return [name for name, field in Options.model_fields.items() if shown(field).section == section]


def options(
    names: Iterable[str], panel: str | None = None, unset: Mapping[str, str] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds options, in this order.

    Args:
        names: names of fields of `Options`.
        panel: title of the panel on the help page; None for the title of the option's section.
        unset: descriptions of defaults, by name, where the command has others.
    """

    def decorate(command: Command) -> Command:
        for name in reversed(list(names)):
            command = _option(name, panel, (unset or {}).get(name))(command)
        return command

    return decorate


def _option(name: str, panel: str | None, unset: str | None) -> Callable[[Command], Command]:
    field = Options.model_fields[name]
    form = shown(field)
    kind, multiple = _kind(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    unset = unset or form.unset or _text(field.default)
    settings: dict[str, Any] = {
        "help": f"{field.description}  [default: {unset}]" if unset else field.description,
        "panel": panel or SECTIONS[form.section],
        "default": None,  # what is not given is left to `Options`
    }
    if kind is bool:
        return click.option(f"{flag}/{form.off or flag.replace('--', '--no-')}", name, **settings)
    settings |= {"multiple": multiple, "metavar": form.metavar}
    settings["type"] = click.Choice(get_args(kind)) if get_origin(kind) is Literal else kind
    return click.option(*([SHORT[name]] if name in SHORT else []), flag, name, **settings)


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of one value of an option, and whether the option may be repeated."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is tuple:
        return _kind(get_args(annotation)[0])[0], True
    if get_origin(annotation) is Literal or not parts:
        return annotation, False
    return _kind(parts[0])


def _text(default: Any) -> str:
    """Describe a default value; empty if there is none worth showing."""
    if default in (None, (), ""):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def given(context: click.Context) -> dict[str, Any]:
    """Return the options given on the command line, by name, without defaults."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE
    }


def setting_of(said: dict[str, Any]) -> tuple[Setting, str | None]:
    """Return the setting and the attention implementation from the given values of `ENVIRONMENT`.

    Raises:
        UsageError: if a value is out of range, or not used by the regime.
    """
    made = Options(**{name: value for name, value in said.items() if name in ENVIRONMENT})
    if made.clock != "auto":
        return made.setting, made.attention
    from ziplm.stages.clock import choose_clock, probe_machine

    setting, reason = choose_clock(made.setting, probe_machine())
    click.echo(reason, err=True)
    return setting, made.attention


def default_of(name: str) -> Any:
    """Return the default of an option."""
    return Options.model_fields[name].default

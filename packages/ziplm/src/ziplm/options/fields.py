"""Declaring options: each field carries its help text, its section and its form on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

SECTIONS = {
    "essential": "What most people need",
    "targets": "Targets",
    "data": "Data",
    "environment": "Environment: where the models must be fast",
    "method": "Method",
    "training": "Training, with --mode finetune or gradual",
    "run": "Run",
}
"""Titles of the sections of options, in the order of the help page."""


@dataclass(frozen=True)
class Shown:
    """How an option appears on the command line and on the reference page.

    Attributes:
        section: key of `SECTIONS`.
        metavar: placeholder for the value.
        off: name of the flag that switches a boolean option off; None for ``--no-NAME``.
        unset: description of what happens if the option is not given, where the default itself says little.
    """

    section: str
    metavar: str | None = None
    off: str | None = None
    unset: str | None = None


class Section(BaseModel):
    """Some of the options of a run, as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def option(default: Any, section: str, help: str, **shown: str) -> Any:  # noqa: A002
    """Declare an option with its default value, section and help text."""
    return Field(default, description=help, json_schema_extra={"shown": Shown(section, **shown)})  # type: ignore[dict-item]


def shown(field: FieldInfo) -> Shown:
    """Return how an option appears."""
    extra: Any = field.json_schema_extra
    made = extra["shown"]
    assert isinstance(made, Shown)
    return made


def _as_sequence(value: Any) -> Any:
    """Let a single value stand for a sequence of one."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    return value if isinstance(value, set | frozenset) else (value,)


def _as_text(value: Any) -> Any:
    """Accept paths where text is expected."""
    return fspath(value) if isinstance(value, PathLike) else value


def _as_python(value: Any) -> Any:
    """Turn numbers of NumPy and torch into those of Python."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


Text = Annotated[str, BeforeValidator(_as_text)]
Whole = Annotated[int, BeforeValidator(_as_python)]
Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_as_python)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_sequence)]
Wholes = Annotated[tuple[Whole, ...], BeforeValidator(_as_sequence)]
Numbers = Annotated[tuple[Number, ...], BeforeValidator(_as_sequence)]

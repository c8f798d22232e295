"""Converting option values from Python, TOML or a command line to the type of their annotation."""

import math
import numbers
import os
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from ziplm.errors import UsageError

KINDS: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
}


def as_kind(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type of the option's annotation; raise UsageError if it does not fit."""
    if get_origin(kind) is Literal:
        require(value in get_args(kind), f"{name} is {value!r}", f"use one of {', '.join(get_args(kind))}")
        return value
    if get_origin(kind) is tuple:
        values = value if isinstance(value, list | tuple) else (value,)
        return tuple(as_kind(name, each, get_args(kind)[0]) for each in values)
    if type(None) in get_args(kind):
        return None if value is None else as_kind(name, value, get_args(kind)[0])
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    accepted, description = KINDS[kind]
    fits = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
    require(
        fits and (kind is not float or math.isfinite(value)), f"{name} is {value!r}", f"give {description}"
    )
    return kind(value)


def require(condition: bool, message: str, hint: str) -> None:
    """Raise UsageError unless a condition holds."""
    if not condition:
        raise UsageError(message, hint)


def parsed_settings(options: Sequence[str]) -> dict[str, Any]:
    """Parse ``["stride=64"]`` into ``{"stride": 64}``; digits become whole numbers."""
    settings: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        require(bool(name and equals), f"the task option {option!r}", "write NAME=VALUE")
        settings[name] = int(value) if value.isdigit() else value
    return settings

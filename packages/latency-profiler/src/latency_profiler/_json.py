"""Parsed JSON that may be anybody's: every entry is checked for its kind before it is used."""

from collections.abc import Mapping
from typing import Any

from latency_profiler._errors import TableError

NUMBER = (float, int)
_HINT = "profile again, or restore the file"


def checked_fields(values: Any, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """The entries of a JSON object that has exactly these names, each of one of its kinds."""
    if type(values) is not dict:
        raise TableError(f"{values!r:.40} stands where an object should be", _HINT)
    if missing := [name for name in kinds if name not in values]:
        raise TableError(f"{missing[0]} is missing", _HINT)
    if unknown := [name for name in values if name not in kinds]:
        raise TableError(f"{unknown[0]!r:.40} is not known", _HINT)
    for name, value in values.items():
        checked_kind(name, value, kinds[name])
    return values


def checked_kind(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    """Raise TableError unless the value is of one of the kinds; a bool is no number here."""
    if type(value) not in kinds:
        raise TableError(f"{name} is {value!r:.40}", _HINT)
    if type(value) is int and abs(value) > 2**53:  # beyond what a float holds
        raise TableError(f"{name} is {value!r:.40}", _HINT)

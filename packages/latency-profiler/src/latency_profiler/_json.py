"""Type checks for parsed JSON from untrusted files."""

from collections.abc import Mapping
from typing import Any

from latency_profiler._errors import TableError

NUMBER = (float, int)
_HINT = "profile again, or restore the file"


def checked_fields(values: Any, types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return a JSON object after checking that it has exactly the given fields, each of an allowed type.

    Args:
        values: Parsed JSON.
        types: Allowed types of each field.

    Raises:
        TableError: `values` is not an object, or a field is missing, unknown or of another type.
    """
    if type(values) is not dict:
        raise TableError(f"expected an object, found {values!r:.40}", _HINT)
    if missing := [name for name in types if name not in values]:
        raise TableError(f"{missing[0]} is missing", _HINT)
    if unknown := [name for name in values if name not in types]:
        raise TableError(f"unknown field {unknown[0]!r:.40}", _HINT)
    for name, value in values.items():
        check_type(name, value, types[name])
    return values


def check_type(name: str, value: Any, types: tuple[type, ...]) -> None:
    """Raise TableError unless the value has one of the types exactly: a bool does not count as an int.

    Integers beyond 2**53 are refused too, because a float cannot hold them exactly.
    """
    if type(value) not in types or (type(value) is int and abs(value) > 2**53):
        raise TableError(f"{name} has the invalid value {value!r:.40}", _HINT)

"""Reading JSON from untrusted files, and type checks of what was read."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from latency_profiler._errors import TableError, UnreadableTable, one_line, shortened

NUMBER = (float, int)
LARGEST_FILE = 100_000_000  # bytes; a table of a thousand sizes takes less than one million
_HINT = "profile again, or restore the file"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        UnreadableTable: The file does not exist, is not an ordinary file, or cannot be read.
        TableError: It is too large, not JSON, or nested too deeply, or contains text that is not Unicode.
    """
    name = shortened(path)
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):  # reading a pipe or a device might never end
            raise UnreadableTable(f"cannot read {name}: it is not a file", "check the path")
        if status.st_size > LARGEST_FILE:
            raise TableError(f"{name} has {status.st_size} bytes", f"tables have at most {LARGEST_FILE}")
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableTable(f"cannot read {name}: {error.strerror}", "check the path") from error
    except TableError:
        raise
    except ValueError as error:  # a NUL in the path
        raise UnreadableTable(f"cannot read {name}: not a valid path", "check the path") from error
    try:
        document = json.loads(content.decode("utf-8"))
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # lone surrogates cannot be printed
    except RecursionError as error:
        raise TableError(f"{name} is not JSON of a table: nested too deeply", _HINT) from error
    except ValueError as error:  # not UTF-8, not JSON, or thousands of digits
        raise TableError(f"{name} is not JSON: {one_line(error)}", _HINT) from error
    return document


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

    Integers beyond 2**53 are refused too, because a float cannot hold them exactly, and so are NaN and inf.
    """
    too_large = type(value) is int and abs(value) > 2**53
    not_finite = type(value) is float and not math.isfinite(value)
    if type(value) not in types or too_large or not_finite:
        raise TableError(f"{name} has the invalid value {value!r:.40}", _HINT)


def check_least(values: Mapping[str, Any], least: Mapping[str, float]) -> None:
    """Raise TableError if a number is below its least value; None passes."""
    for name, bound in least.items():
        if values[name] is not None and values[name] < bound:
            raise TableError(f"{name} is {values[name]}, which is below {bound}", _HINT)

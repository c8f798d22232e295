"""Plain values of files that may have been written by another version, or by hand."""

import math
from collections.abc import Iterable
from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """Return a value if it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def finite(values: Iterable[Any]) -> list[float]:
    """Return the finite numbers among some values."""
    numbers = (float(value) for value in values if isinstance(value, int | float))
    return [value for value in numbers if math.isfinite(value)]

"""Conversion of user input to NumPy arrays and floats, with errors that name the offending value."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rows: TypeAlias = Sequence[ArrayLike]


def finite_rows(what: str, rows: Rows) -> tuple[NDArray[np.float64], ...]:
    """Convert `rows` to read-only float64 arrays, one per module.

    Args:
        what: Name of the rows in error messages.
        rows: One sequence of numbers per module.

    Raises:
        ValueError: If there is no row, a row is empty or not numeric, a value is not finite, or sums of the
            values could overflow.
    """
    if not isinstance(rows, Iterable):
        raise ValueError(f"{what} must be one row of numbers per module; got {_brief(rows)}")
    converted = [_finite_row(f"{what}: module {module}", row) for module, row in enumerate(rows)]
    if not converted:
        raise ValueError(f"{what} have no modules; at least one row is needed")
    if math.isinf(2 * sum(float(np.abs(row).max()) for row in converted)):
        raise ValueError(f"{what} add up to more than a float can hold; use a larger unit")
    return tuple(converted)


def finite_number(what: str, value: object) -> float:
    """Convert `value` to a finite float, or raise a ValueError that calls it `what`."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} must be a number that a float can hold; got {_brief(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite; got {number}")
    return number


def whole_number(what: str, value: object, least: int) -> int:
    """Convert `value` to an int of at least `least`, or raise a ValueError that calls it `what`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{what} must be a whole number; got {_brief(value)}") from None
    if number < least:
        raise ValueError(f"{what} must be at least {least}; got {_brief(number)}")
    return number


def _finite_row(what: str, row: ArrayLike) -> NDArray[np.float64]:
    try:
        if np.iscomplexobj(row):
            raise TypeError
        array = np.array(row, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} is not a row of numbers that a float can hold: {_brief(row)}") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{what} must be a row with at least one level; got shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"{what}, level {bad[0]} is {array[bad[0]]}; every value must be finite")
    array.flags.writeable = False
    return array


def _brief(value: object) -> str:
    """The repr of `value` on one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an int of thousands of digits
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."

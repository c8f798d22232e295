"""Sizes of a module family: heads, widths; written as a list, a range, or a geometric grid."""

import re
from collections.abc import Sequence

from latency_profiler._errors import SizeError

_GRID = re.compile(r"(\d+)\*(0?\.\d+)\^i")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def geometric_sizes(largest: int, ratio: float = 0.9, smallest: float = 0.01) -> tuple[int, ...]:
    """`largest` times ratio^i while that fraction is at least `smallest`, and 0: 3072, 2764, …, 33, 0.

    The fraction is rounded to four digits first, as in the paper's grid of widths.
    """
    if largest < 1 or not 0 < ratio < 1 or not 0 < smallest <= 1:
        raise SizeError(
            f"no grid has largest size {largest}, ratio {ratio} and smallest fraction {smallest}",
            "use a largest size from 1 up and numbers between 0 and 1, such as 3072*0.9^i",
        )
    sizes = []
    fraction = 1.0
    while fraction >= smallest:
        sizes.append(int(largest * (1 - round(1 - fraction, 4))))
        fraction = ratio ** len(sizes)
    return tuple(sorted({*sizes, 0}, reverse=True))


LARGEST = 2**53  # whole numbers beyond are not exact as floats


def checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes, largest first; they must be whole, not negative, and strictly falling or rising."""
    values = tuple(sizes)
    hint = "use falling sizes such as 12,8,4,0"
    if not values:
        raise SizeError("there are no sizes", hint)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SizeError(f"size {value!r} is not a whole number", hint)
        if value < 0:
            raise SizeError(f"size {value} is negative", hint)
        if value > LARGEST:
            raise SizeError(f"a size has {len(str(value))} digits", f"sizes go up to {LARGEST}")
    falling = tuple(sorted(set(values), reverse=True))
    if values not in (falling, falling[::-1]):
        way = values[1] - values[0]
        place = next(i for i in range(1, len(values)) if (values[i] - values[i - 1]) * way <= 0)
        raise SizeError(
            f"sizes are not sorted or repeat: {values[place]} comes after {values[place - 1]}", hint
        )
    return falling


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read ``12,8,4,0`` (a list), ``12..0`` (a range), or ``3072*0.9^i`` (a grid, see `geometric_sizes`)."""
    compact = text.replace(" ", "")
    if grid := _GRID.fullmatch(compact):
        return geometric_sizes(int(grid[1]), float(grid[2]))
    if span := _RANGE.fullmatch(compact):
        first, last = int(span[1]), int(span[2])
        step = -1 if first > last else 1
        return checked_sizes(range(first, last + step, step))
    try:
        values = [int(part) for part in compact.split(",")]
    except ValueError:
        raise SizeError(
            f"sizes {text!r} cannot be read", "write a list 12,8,4,0, a range 12..0, or a grid 3072*0.9^i"
        ) from None
    return checked_sizes(values)

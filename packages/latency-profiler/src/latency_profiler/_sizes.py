"""Sizes of a module family (such as heads or widths), given as a list, a range or a geometric grid."""

import math
import re
from collections.abc import Sequence

from latency_profiler._errors import SizeError, shortened

LARGEST = 2**53  # floats cannot represent all larger integers
MOST_SIZES = 100_000
_GRID = re.compile(r"(\d+)\*(0?\.\d+)\^i")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def geometric_sizes(largest: int, ratio: float = 0.9, smallest: float = 0.01) -> tuple[int, ...]:
    """Return a geometric grid of sizes that ends with 0: 3072, 2764, …, 33, 0.

    Args:
        largest: Largest size.
        ratio: Ratio of neighbouring sizes, between 0 and 1.
        smallest: Smallest fraction of `largest` to include, apart from 0.

    Returns:
        The distinct values of ``largest * ratio**i``, largest first, then 0. The fraction ``ratio**i`` is
        rounded to four digits and the size is rounded down, as in the ZipLM paper.

    Raises:
        SizeError: An argument is out of range.
    """
    in_range = 1 <= largest <= LARGEST and 0 < ratio < 1 and 0 < smallest <= 1
    if not in_range or math.log(smallest) / math.log(ratio) > MOST_SIZES:
        raise SizeError(
            f"cannot make a grid with largest size {shortened(largest, 30)}, ratio {ratio} and smallest "
            f"fraction {smallest}",
            "use a largest size of at least 1, a fraction between 0 and 1, and a ratio between 0 and 1 that "
            f"gives at most {MOST_SIZES} sizes, such as 3072*0.9^i",
        )
    sizes = []
    fraction = 1.0
    while fraction >= smallest:
        sizes.append(int(largest * (1 - round(1 - fraction, 4))))
        fraction = ratio ** len(sizes)
    return tuple(sorted({*sizes, 0}, reverse=True))


def checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes in falling order.

    Raises:
        SizeError: The sizes are not non-negative integers up to 2**53 in strictly falling or rising order.
    """
    hint = "use falling sizes, such as 12,8,4,0"
    if len(sizes) > MOST_SIZES:
        raise SizeError(f"there are {len(sizes)} sizes", f"use at most {MOST_SIZES}")
    values = tuple(sizes)
    if not values:
        raise SizeError("the list of sizes is empty", hint)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SizeError(f"size {value!r:.40} is not an integer", hint)
        if value < 0:
            raise SizeError(f"size {value} is negative", hint)
        if value > LARGEST:
            raise SizeError(f"a size has {len(str(value))} digits", f"the largest allowed size is {LARGEST}")
    falling = tuple(sorted(set(values), reverse=True))
    if values not in (falling, falling[::-1]):
        direction = values[1] - values[0]
        place = next(i for i in range(1, len(values)) if (values[i] - values[i - 1]) * direction <= 0)
        raise SizeError(
            f"sizes are unsorted or repeated: {values[place]} comes after {values[place - 1]}", hint
        )
    return falling


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes given as text, and return them in falling order.

    Args:
        text: List ``12,8,4,0``, range ``12..0`` (both ends included) or geometric grid ``3072*0.9^i`` (see
            `geometric_sizes`).

    Raises:
        SizeError: The text cannot be parsed, or the sizes are invalid.
    """
    compact = text.replace(" ", "")
    try:
        if grid := _GRID.fullmatch(compact):
            return geometric_sizes(int(grid[1]), float(grid[2]))
        if span := _RANGE.fullmatch(compact):
            return checked_sizes(_span(int(span[1]), int(span[2])))
        values = [int(part) for part in compact.split(",")]
    except SizeError:
        raise
    except ValueError:  # not a number, or thousands of digits
        raise SizeError(
            f"cannot parse sizes '{shortened(text, 60)}'",
            "write a list 12,8,4,0, a range 12..0 or a grid 3072*0.9^i",
        ) from None
    return checked_sizes(values)


def _span(first: int, last: int) -> range:
    """Return the sizes of a range, both ends included."""
    if abs(first - last) > MOST_SIZES:  # `len` fails beyond 2**63
        raise SizeError(f"a range has more than {MOST_SIZES} sizes", "use a grid, such as 3072*0.9^i")
    step = -1 if first > last else 1
    return range(first, last + step, step)

"""Costs as 64-bit integers, so that sums are exact and comparisons cannot be wrong by a rounding error.

The rule of the package is `math.fsum(costs) <= budget`. fsum rounds the true sum once, so the rule holds
for true sums up to the middle between the budget and the next float. A dynamic program that adds floats is
off by some of their last digits: enough to lose an assignment that meets the budget exactly, or to prefer
one that is over it. Here every cost is counted from its module's smallest one, in units of 2⁻⁶⁰ of what the
budget leaves above these.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OUT_OF_REACH = 1e9  # more than any cost in units of the capacity
CAPACITY_BITS = 60  # a partial sum within capacity plus one more level stays within 62 bits


class Grid(NamedTuple):
    """One kind of cost on the integers.

    Attributes:
        costs: One int64 row per module: cost above the module's smallest, rounded down; 0 where not `within`.
        within: One bool row per module: whether the level can be within budget, the other modules at their
            smallest.
        capacity: The largest allowed sum.
    """

    costs: tuple[NDArray[np.int64], ...]
    within: tuple[NDArray[np.bool_], ...]
    capacity: int


def integer_costs(rows: Sequence[NDArray[np.float64]], budget: float) -> Grid:
    """Put costs on an integer grid. With a budget out of reach no level is within it."""
    # Floats are integers over powers of two: with one common denominator all of this is integer arithmetic.
    ratios = [[value.as_integer_ratio() for value in row.tolist()] for row in rows]
    limit, limit_allowed = _largest_sum(budget)
    bits = max(limit.denominator, *(d for row in ratios for _, d in row)).bit_length() - 1
    exact = [[n << (bits - d.bit_length() + 1) for n, d in row] for row in ratios]
    smallest = [min(row) for row in exact]
    room = int(limit * 2**bits) - sum(smallest)
    if not limit_allowed:
        room -= 1
    shift = max(room, 0).bit_length() - CAPACITY_BITS
    costs, within = [], []
    for row, low in zip(exact, smallest, strict=True):
        above = [value - low for value in row]
        reachable = [value <= room for value in above]
        scaled = [_shifted(value, shift) if ok else 0 for value, ok in zip(above, reachable, strict=True)]
        costs.append(np.array(scaled, dtype=np.int64))
        within.append(np.array(reachable))
    return Grid(tuple(costs), tuple(within), _shifted(max(room, 0), shift))


def _shifted(value: int, shift: int) -> int:
    return value >> shift if shift >= 0 else value << -shift


def _largest_sum(budget: float) -> tuple[Fraction, bool]:
    """The supremum of true sums that round to at most `budget`, and whether it does so itself."""
    above = math.nextafter(budget, math.inf)
    if math.isinf(above):
        return Fraction(budget), True
    middle = (Fraction(budget) + Fraction(above)) / 2
    return middle, math.fsum([budget, float(middle - Fraction(budget))]) <= budget

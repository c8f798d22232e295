"""Costs as 64-bit integers, so that sums are exact and comparisons free of rounding errors.

An assignment is within budget if `math.fsum(costs) <= budget`. `math.fsum` rounds the true sum once, so this
allows true sums up to the midpoint between the budget and the next larger float. A dynamic program that adds
floats is off by a few of their last digits, which is enough to lose an assignment that meets the budget
exactly, or to prefer one that exceeds it.

The grid counts every cost from the smallest cost of its module. Its unit is 2⁻⁶⁰ of the room, that is, of the
budget minus the sum of these smallest costs.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OUT_OF_REACH = 1e9  # in units of the capacity: larger than any cost that can be within budget
CAPACITY_BITS = 60  # a partial sum within capacity plus one more level stays within 62 bits


class Grid(NamedTuple):
    """One kind of cost on an integer grid.

    Attributes:
        costs: One int64 row per module: cost above the module's smallest cost, rounded down; 0 where not
            `within`.
        within: One bool row per module: whether the level is within budget when all other modules are at
            their smallest cost.
        capacity: Largest allowed sum of `costs`.
    """

    costs: tuple[NDArray[np.int64], ...]
    within: tuple[NDArray[np.bool_], ...]
    capacity: int


def integer_costs(rows: Sequence[NDArray[np.float64]], budget: float) -> Grid:
    """Put costs on an integer grid.

    Args:
        rows: One float64 row of costs per module.
        budget: Largest allowed total cost. If it cannot be met, no level is `within`.
    """
    exact, room = _common_denominator(rows, budget)
    shift = max(room, 0).bit_length() - CAPACITY_BITS
    costs, within = [], []
    for row in exact:
        smallest = min(row)
        above = [value - smallest for value in row]
        reachable = [value <= room for value in above]
        scaled = [_shifted(value, shift) if ok else 0 for value, ok in zip(above, reachable, strict=True)]
        costs.append(np.array(scaled, dtype=np.int64))
        within.append(np.array(reachable))
    return Grid(tuple(costs), tuple(within), _shifted(max(room, 0), shift))


def _common_denominator(rows: Sequence[NDArray[np.float64]], budget: float) -> tuple[list[list[int]], int]:
    """Costs, and the room above the smallest ones, as exact multiples of one power of two.

    Floats are integers divided by powers of two, so a common denominator turns all of this into integer
    arithmetic.
    """
    ratios = [[value.as_integer_ratio() for value in row.tolist()] for row in rows]
    limit, limit_allowed = _largest_sum(budget)
    bits = max(limit.denominator, *(d for row in ratios for _, d in row)).bit_length() - 1
    exact = [[n << (bits - d.bit_length() + 1) for n, d in row] for row in ratios]
    room = int(limit * 2**bits) - sum(map(min, exact))
    return exact, room if limit_allowed else room - 1


def _shifted(value: int, shift: int) -> int:
    return value >> shift if shift >= 0 else value << -shift


def _largest_sum(budget: float) -> tuple[Fraction, bool]:
    """Supremum of the true sums that round to at most `budget`, and whether it is itself such a sum."""
    above = math.nextafter(budget, math.inf)
    if math.isinf(above):
        return Fraction(budget), True
    midpoint = (Fraction(budget) + Fraction(above)) / 2
    return midpoint, math.fsum([budget, float(midpoint - Fraction(budget))]) <= budget

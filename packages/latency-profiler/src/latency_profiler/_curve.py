"""LatencyCurve: seconds of one module at each of its sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from latency_profiler._errors import SizeError, TableError
from latency_profiler._json import NUMBER, checked_fields, checked_kind
from latency_profiler._sizes import checked_sizes
from latency_profiler._timing import Timing, format_seconds


@dataclass(frozen=True)
class LatencyCurve:
    """Seconds by size, largest size first.

    Call it for the time at any size in between: ``curve(1000)``, by linear interpolation.

    Attributes:
        sizes: Strictly falling.
        seconds: Never rising as the size falls.
        timings: What was measured at each size, before the clean-up; () when there is no record.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    timings: tuple[Timing, ...] = ()

    def __post_init__(self) -> None:
        hint = "a curve has one time per size, largest size first, and none that is negative or not finite"
        if checked_sizes(self.sizes) != self.sizes:
            raise SizeError("the sizes of a curve rise", "put the largest first")
        if len(self.seconds) != len(self.sizes) or len(self.timings) not in (0, len(self.sizes)):
            raise TableError(
                f"{len(self.sizes)} sizes have {len(self.seconds)} times and {len(self.timings)} timings",
                hint,
            )
        for size, seconds in zip(self.sizes, self.seconds, strict=True):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise TableError(f"size {size} takes {seconds} seconds", hint)
        if any(small > large for large, small in zip(self.seconds, self.seconds[1:], strict=False)):
            raise TableError("a smaller size takes longer", "make curves from timings with LatencyCurve.fit")

    @classmethod
    def fit(cls, sizes: tuple[int, ...], timings: tuple[Timing, ...]) -> LatencyCurve:
        """Clean up: the non-increasing times nearest to the measured ones (least squares).

        What is left of the noise would otherwise let a search pick the larger of two sizes to gain time.
        """
        measured = np.array([timing.seconds for timing in timings])
        fitted = isotonic_regression(measured, increasing=False).x
        return cls(sizes, tuple(float(value) for value in fitted), timings)

    def __call__(self, size: float) -> float:
        """Seconds at `size`, linear between measured sizes; SizeError outside them."""
        smallest, largest = self.sizes[-1], self.sizes[0]
        if not smallest <= size <= largest:
            raise SizeError(
                f"size {size} was not measured",
                f"use sizes from {smallest} to {largest}, or profile a wider range",
            )
        return float(np.interp(size, self.sizes[::-1], self.seconds[::-1]))

    @property
    def speedups(self) -> tuple[float, ...]:
        """Time of the largest size divided by the time of each."""
        return tuple(self.seconds[0] / seconds if seconds > 0 else math.inf for seconds in self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "sizes": list(self.sizes),
            "seconds": list(self.seconds),
            "timings": [timing.to_dict() for timing in self.timings],
        }

    @classmethod
    def from_dict(cls, values: Any) -> LatencyCurve:
        """The inverse of `to_dict`; TableError if an entry is missing or of another kind."""
        parts = checked_fields(values, {"sizes": (list,), "seconds": (list,), "timings": (list,)})
        for seconds in parts["seconds"]:
            checked_kind("a time", seconds, NUMBER)
        return cls(
            tuple(parts["sizes"]),
            tuple(float(seconds) for seconds in parts["seconds"]),
            tuple(Timing.from_dict(timing) for timing in parts["timings"]),
        )

    def __str__(self) -> str:
        points = [
            f"{size}: {format_seconds(seconds)}"
            for size, seconds in zip(self.sizes, self.seconds, strict=True)
        ]
        return ", ".join(points if len(points) <= 6 else [*points[:4], "…", points[-1]])

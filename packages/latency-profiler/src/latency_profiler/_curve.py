"""Latency of one module as a function of its size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from latency_profiler._errors import SizeError, TableError
from latency_profiler._json import NUMBER, check_type, checked_fields
from latency_profiler._sizes import checked_sizes
from latency_profiler._timing import Timing, format_seconds


@dataclass(frozen=True)
class LatencyCurve:
    """Latency of a module at each measured size, largest size first.

    Call the curve to interpolate linearly between measured sizes: ``curve(1000)``.

    Attributes:
        sizes: Sizes in strictly falling order.
        seconds: Time at each size; it never rises as the size falls.
        timings: Measurements at each size, before `fit` made them monotone; () if none were recorded.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    timings: tuple[Timing, ...] = ()

    def __post_init__(self) -> None:
        hint = "a curve has one finite, non-negative time per size, largest size first"
        if checked_sizes(self.sizes) != self.sizes:
            raise SizeError(
                "curve sizes are not in falling order", "give a tuple with the largest size first"
            )
        if len(self.seconds) != len(self.sizes) or len(self.timings) not in (0, len(self.sizes)):
            raise TableError(
                f"a curve of {len(self.sizes)} sizes has {len(self.seconds)} times "
                f"and {len(self.timings)} timings",
                hint,
            )
        for size, seconds in zip(self.sizes, self.seconds, strict=True):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise TableError(f"the time of size {size} is {seconds} seconds", hint)
        if any(small > large for large, small in zip(self.seconds, self.seconds[1:], strict=False)):
            raise TableError(
                "a smaller size takes longer than a larger one",
                "use LatencyCurve.fit to make a curve from timings",
            )

    @classmethod
    def fit(cls, sizes: tuple[int, ...], timings: tuple[Timing, ...]) -> LatencyCurve:
        """Make a curve from timings by isotonic regression.

        The times are the least-squares fit to the measured ones that never rises as the size falls. Without
        the fit, noise could lead a search to choose the larger of two sizes in order to save time.

        Args:
            sizes: Sizes in strictly falling order.
            timings: Measurement at each size.
        """
        from scipy.optimize import isotonic_regression  # slow to import, and needed here only

        measured = np.array([timing.seconds for timing in timings])
        fitted = isotonic_regression(measured, increasing=False).x
        return cls(sizes, tuple(float(value) for value in fitted), timings)

    def __call__(self, size: float) -> float:
        """Return the seconds at `size`, interpolated linearly between measured sizes.

        Raises:
            SizeError: `size` lies outside the measured range.
        """
        smallest, largest = self.sizes[-1], self.sizes[0]
        if not smallest <= size <= largest:
            raise SizeError(
                f"size {size} is outside the measured range",
                f"use sizes from {smallest} to {largest}, or profile a wider range",
            )
        return float(np.interp(size, self.sizes[::-1], self.seconds[::-1]))

    @property
    def speedups(self) -> tuple[float, ...]:
        """Time of the largest size divided by the time of each size."""
        return tuple(self.seconds[0] / seconds if seconds > 0 else math.inf for seconds in self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that can be written as JSON."""
        return {
            "sizes": list(self.sizes),
            "seconds": list(self.seconds),
            "timings": [timing.to_dict() for timing in self.timings],
        }

    @classmethod
    def from_dict(cls, values: Any) -> LatencyCurve:
        """Rebuild a curve from the result of `to_dict`.

        Raises:
            TableError: A field is missing, unknown or of the wrong type, or a time is invalid.
            SizeError: The sizes are invalid.
        """
        parts = checked_fields(values, {"sizes": (list,), "seconds": (list,), "timings": (list,)})
        for seconds in parts["seconds"]:
            check_type("a time", seconds, NUMBER)
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

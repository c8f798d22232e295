"""The paper's scaling law: the metric falls linearly with the speedup, at a slope of the model's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST = 3  # targets that a line is fitted to: two would always fit


@dataclass(frozen=True)
class LinearFit:
    """metric ≈ intercept + slope · speedup, by least squares.

    Attributes:
        metric: its name.
        intercept: what the line says of no speedup at all.
        slope: of the metric, for each time that the model is faster.
        residual: root mean square distance of the targets from the line.
        targets: how many there are.
    """

    metric: str
    intercept: float
    slope: float
    residual: float
    targets: int

    def __str__(self) -> str:
        sign = "-" if self.slope < 0 else "+"
        return (
            f"{self.metric} ≈ {self.intercept:.4g} {sign} {abs(self.slope):.3g} x speedup "
            f"({self.targets} targets, ±{self.residual:.2g})"
        )


def fit_metric(family: Sequence[dict[str, Any]]) -> LinearFit | None:
    """Fit the main metric of finished targets to their speedups, measured ones where there are.

    Args:
        family: what metrics.json of each target holds. The dense model is no part of the fit.

    Returns:
        None with fewer than three targets.
    """
    if len(family) < FEWEST:
        return None
    speedups = np.array([speedup_of(metrics) for metrics in family])
    found = np.array([metrics["metric"]["compressed"] for metrics in family])
    design = np.stack([np.ones_like(speedups), speedups], axis=1)  # (targets, 2)
    intercept, slope = np.linalg.lstsq(design, found)[0]
    residual = float(np.sqrt(np.mean((design @ [intercept, slope] - found) ** 2)))
    name = family[0]["metric"]["name"]
    return LinearFit(name, float(intercept), float(slope), residual, len(family))


def speedup_of(metrics: dict[str, Any]) -> float:
    """The measured speedup of a target, or else the predicted one."""
    return float((metrics["measured"] or metrics["predicted"])["speedup"])

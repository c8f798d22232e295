"""The paper's scaling law: the metric falls linearly with the speedup, with a slope for each model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST = 3  # targets to fit a line to; two would always fit


@dataclass(frozen=True)
class LinearFit:
    """metric ≈ intercept + slope · speedup, by least squares.

    Attributes:
        metric: name of the metric.
        intercept: value of the line at a speedup of 0.
        slope: change of the metric per unit of speedup.
        residual: root mean square distance of the targets from the line.
        targets: number of targets.
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


def fit_metric(reports: Sequence[dict[str, Any]]) -> LinearFit | None:
    """Fit the main metric of finished targets to their speedups, measured if available, else predicted.

    Args:
        reports: the report of each target, from its metrics.json. The dense model is not part of the fit.

    Returns:
        The fit; None with fewer than three targets.
    """
    if len(reports) < FEWEST:
        return None
    speedups = np.array([speedup_of(report) for report in reports])
    found = np.array([report["metric"]["compressed"] for report in reports])
    design = np.stack([np.ones_like(speedups), speedups], axis=1)  # (targets, 2)
    intercept, slope = np.linalg.lstsq(design, found)[0]
    residual = float(np.sqrt(np.mean((design @ [intercept, slope] - found) ** 2)))
    name = reports[0]["metric"]["name"]
    return LinearFit(name, float(intercept), float(slope), residual, len(reports))


def speedup_of(report: dict[str, Any]) -> float:
    """Return the measured speedup of a target, or else the predicted one."""
    return float((report["measured"] or report["predicted"])["speedup"])

"""The paper's scaling law: the metric falls linearly with the speedup, with a slope for each model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

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
        slope_low: lower end of the slope's 95 % interval.
        slope_high: upper end of the slope's 95 % interval.
    """

    metric: str
    intercept: float
    slope: float
    residual: float
    targets: int
    slope_low: float
    slope_high: float

    def __str__(self) -> str:
        sign = "-" if self.slope < 0 else "+"
        return (
            f"{self.metric} ≈ {self.intercept:.4g} {sign} {abs(self.slope):.3g} x speedup "
            f"({self.targets} targets, ±{self.residual:.2g}; 95 % interval of the slope: "
            f"[{self.slope_low:.3g}, {self.slope_high:.3g}])"
        )


def fit_metric(reports: Sequence[dict[str, Any]]) -> LinearFit | None:
    """Fit the main metric of finished targets to their speedups, measured if available, else predicted.

    Args:
        reports: the report of each target, from its metrics.json. The dense model is not part of the fit.

    Returns:
        The fit; None with fewer than three targets, or if all have the same metric.
    """
    if len(reports) < FEWEST:
        return None
    speedups = np.array([speedup_of(report) for report in reports])
    found = np.array([report["metric"]["compressed"] for report in reports])
    if np.allclose(found, found[0], rtol=1e-9, atol=0):  # a slope would be the noise of rounding
        return None
    design = np.stack([np.ones_like(speedups), speedups], axis=1)  # (targets, 2)
    intercept, slope = np.linalg.lstsq(design, found)[0]
    residual = float(np.sqrt(np.mean((design @ [intercept, slope] - found) ** 2)))
    name = reports[0]["metric"]["name"]
    low, high = _slope_interval(speedups, float(slope), residual)
    return LinearFit(name, float(intercept), float(slope), residual, len(reports), low, high)


def _slope_interval(speedups: NDArray[np.float64], slope: float, residual: float) -> tuple[float, float]:
    """Return the 95 % interval of a slope, for normal distances from the line; infinite if undetermined."""
    count = len(speedups)
    spread = float(np.sum((speedups - speedups.mean()) ** 2))
    if spread <= 0:
        return -np.inf, np.inf
    error = residual * np.sqrt(count / (count - 2) / spread)  # standard error of the slope
    half = float(stats.t.ppf(0.975, count - 2) * error)
    return slope - half, slope + half


def speedup_of(report: dict[str, Any]) -> float:
    """Return the measured speedup of a target, or else the predicted one."""
    return float((report["measured"] or report["predicted"])["speedup"])

"""Estimates of the total cost of any assignment, from measurements of a few.

The table of costs predicts a total p for every assignment: the fixed part plus the costs of its levels. The
true total is p·(1 + b + d). The error b is common to all assignments, since a table of parts that were
measured alone is wrong in much the same way for all of them. The error d is an assignment's own. It is
similar for similar assignments: its correlation is exp(-D), where D is the sum over the modules of the change
in cost, as a share of the target. Both errors are normally distributed around 0:

- b has a standard deviation of 5 %: end to end, tables of isolated modules were off by 2 to 15 %, mostly by
  less than 5 %;
- d has a standard deviation of 2 %. A correction that changes 5 % of the costs is then off by 0.6 % of the
  total (one standard deviation), that is, by an eighth of the correction.

A measurement is the true total plus an error. Its interval tells the noise within it. Measurements at
different times differ by more than that: other programs, caches and temperatures slow small and large models
differently. A measurement with an interval therefore has a further error of its own, with a standard
deviation of 1.5 %; a plain number is taken to be exact. Measurements with small errors override the table at
once. Those with large errors are pooled with each other and with the table (Gaussian process regression;
there are only a few measurements, so this is a handful of small sums). What a busy machine does to all
measurements alike is a shared error, against which only the table helps.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from ._problem import Levels, Problem
from ._threads import one_blas_thread
from ._validate import finite_number

COMMON_ERROR = 0.05  # standard deviation of b
OWN_ERROR = 0.02  # standard deviation of d
UNSEEN_ERROR = 0.015  # standard deviation of a measurement beyond its interval
JITTER = 1e-12  # relative variance added to measurements without error, which may contradict each other
CONFIDENCE = 0.99  # of an interval given as a plain tuple


class Measurement(NamedTuple):
    """A measured total cost and its confidence interval.

    Attributes:
        value: The measured total.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Probability with which the interval contains the true total.
        shared: Standard deviation of an error that is common to all measurements, relative to the value, such
            as that of a busy machine. Measuring again does not reduce it. The interval does not include it.
    """

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE
    shared: float = 0.0

    @property
    def error(self) -> float:
        """Standard error without the shared one: what the interval tells, and UNSEEN_ERROR; else 0."""
        if self.high == self.low:
            return 0.0
        seen = (self.high - self.low) / (2 * float(ndtri((1 + self.confidence) / 2)))
        return math.hypot(seen, UNSEEN_ERROR * self.value)


def as_measurement(measured: object) -> Measurement:
    """Convert what a function of the user returned: a number, a `Measurement`, or (value, low, high).

    Raises:
        ValueError: If it is none of these, a number is not finite, or the interval is empty.
    """
    if not isinstance(measured, tuple):
        try:
            value = float(measured)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"measure must return one number; got {type(measured).__name__} "
                "(a value with its interval is a tuple: value, low, high)"
            ) from None
        if not math.isfinite(value):
            raise ValueError(f"a measurement must be a finite number; got {value}")
        return Measurement(value, value, value)
    if not 3 <= len(measured) <= 5:
        raise ValueError(
            f"a measurement with its interval is (value, low, high); got {len(measured)} numbers"
        )
    found = Measurement(*(finite_number("a measurement", number) for number in measured))
    if found.low > found.high:
        raise ValueError(
            f"the interval of a measurement must not be empty; got [{found.low:.6g}, {found.high:.6g}]"
        )
    if found.shared < 0:
        raise ValueError(f"the shared error of a measurement must be at least 0; got {found.shared:.6g}")
    if not 0 < found.confidence < 1:
        raise ValueError(
            f"the confidence of a measurement must be between 0 and 1; got {found.confidence:.6g}"
        )
    return found


class Estimate(NamedTuple):
    """Estimate of the true total of an assignment, with its uncertainty.

    Attributes:
        mean: Expected total.
        deviation: Its standard deviation.
    """

    mean: float
    deviation: float


class Totals:
    """The distribution of total costs, given measurements.

    Args:
        problem: The problem, whose costs are the table.
        name: Name of the measured cost.
        fixed: Part of the predicted total outside all modules.
        target: The scale of differences between assignments.
    """

    def __init__(self, problem: Problem, name: str, fixed: float, target: float) -> None:
        self._problem, self._name, self._fixed = problem, name, fixed
        self._target = abs(target)
        self._levels: list[Levels] = []
        self._measured: list[Measurement] = []

    def add(self, levels: Levels, measured: Measurement) -> None:
        """Take a measurement into account."""
        self._levels.append(levels)
        self._measured.append(measured)

    def predicted(self, levels: Levels) -> float:
        """Total according to the table."""
        return self._fixed + self._problem.totals(levels)[self._name]

    def estimate(self, levels: Levels, *, shared: bool = True) -> Estimate:
        """Expected total and its deviation, with or without the errors that measurements share."""
        exact = [
            measured.value
            for known, measured in zip(self._levels, self._measured, strict=True)
            if measured.error == measured.shared == 0 and np.array_equal(known, levels)
        ]
        if exact:
            return Estimate(exact[-1], 0.0)
        mean, variance = 0.0, COMMON_ERROR**2 + OWN_ERROR**2
        if self._levels:
            with one_blas_thread():
                mean, variance = self._conditioned(levels, variance, shared)
        unit = self._unit(levels)
        return Estimate(self.predicted(levels) + unit * mean, unit * math.sqrt(max(variance, 0.0)))

    def slope(self, levels: Levels) -> float:
        """Expected change of the total per change of the predicted total."""
        predicted = self.predicted(levels)
        if self._unit(levels) != predicted:
            return 1.0
        return max(self.estimate(levels).mean / predicted, 0.0) or 1.0

    def _conditioned(self, levels: Levels, variance: float, shared_errors: bool) -> tuple[float, float]:
        """Mean and variance of the relative error b + d of an assignment, given the measurements."""
        units = np.array([self._unit(known) for known in self._levels])
        errors = np.array([measured.error for measured in self._measured]) / units
        rises = np.array(
            [
                measured.value - self.predicted(known)
                for known, measured in zip(self._levels, self._measured, strict=True)
            ]
        )
        covariance = np.array([[self._covariance(a, b) for a in self._levels] for b in self._levels])
        covariance[np.diag_indices(len(units))] += errors**2 + JITTER * variance
        if shared_errors:
            common = np.array([measured.shared * measured.value for measured in self._measured]) / units
            covariance += np.outer(common, common)
        shared = np.array([self._covariance(levels, known) for known in self._levels])
        weights: NDArray[np.float64] = np.linalg.solve(covariance, shared)
        return float(weights @ (rises / units)), variance - float(weights @ shared)

    def _covariance(self, first: Levels, second: Levels) -> float:
        rows = self._problem.costs[self._name]
        changed = math.fsum(
            abs(float(row[a] - row[b])) for row, a, b in zip(rows, first, second, strict=True)
        )
        return COMMON_ERROR**2 + OWN_ERROR**2 * math.exp(-changed / (self._target or 1.0))

    def _unit(self, levels: Levels) -> float:
        """The total in units of which errors are relative: the predicted one; if not positive, the target."""
        predicted = self.predicted(levels)
        return predicted if predicted > 0 else self._target or 1.0

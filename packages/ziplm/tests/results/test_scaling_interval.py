"""The slope of the scaling law comes with its uncertainty."""

import math

import numpy as np
import pytest
from scipy import stats
from ziplm.results.scaling import fit_metric


def reports(speedups: list[float], metrics: list[float]) -> list[dict[str, object]]:
    return [
        {"measured": {"speedup": speedup}, "metric": {"name": "accuracy", "compressed": metric}}
        for speedup, metric in zip(speedups, metrics, strict=True)
    ]


def test_the_interval_is_that_of_linear_regression() -> None:
    speedups, metrics = [1.5, 2.0, 3.0, 4.0, 6.0], [0.86, 0.861, 0.85, 0.83, 0.80]
    fit = fit_metric(reports(speedups, metrics))
    oracle = stats.linregress(speedups, metrics)
    half = stats.t.ppf(0.975, 3) * oracle.stderr
    assert fit is not None
    assert fit.slope == pytest.approx(oracle.slope)
    assert (fit.slope_low, fit.slope_high) == pytest.approx((oracle.slope - half, oracle.slope + half))
    assert "95 % interval of the slope" in str(fit)


def test_intervals_cover_the_true_slope_in_nineteen_of_twenty_cases() -> None:
    generator = np.random.default_rng(0)
    speedups = np.array([1.5, 2.0, 3.0, 4.0])
    covered = 0
    for _ in range(1000):
        metrics = 0.9 - 0.02 * speedups + generator.normal(0, 0.01, len(speedups))
        fit = fit_metric(reports(list(speedups), list(metrics)))
        assert fit is not None
        covered += fit.slope_low <= -0.02 <= fit.slope_high
    assert 930 <= covered <= 970
    # control: an interval of the normal distribution, half as wide with two degrees of freedom, does not
    assert stats.norm.ppf(0.975) < stats.t.ppf(0.975, 2) / 2


def test_equal_speedups_determine_no_slope() -> None:
    fit = fit_metric(reports([2.0, 2.0, 2.0], [0.8, 0.81, 0.82]))
    assert fit is not None
    assert math.isinf(fit.slope_low)
    assert math.isinf(fit.slope_high)

"""The linear fit of a metric to the speedup."""

from typing import Any

import pytest
from ziplm.results.scaling import fit_metric


def family(points: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return reports with these measured speedups and values of F1."""
    return [
        {
            "measured": {"speedup": speedup},
            "predicted": {"speedup": -1.0},
            "metric": {"name": "f1", "compressed": value},
        }
        for speedup, value in points
    ]


def test_points_on_a_line_give_that_line() -> None:
    """The line is the paper's for BERT-base on SQuAD."""
    fit = fit_metric(family([(x, 90.3 - 0.6 * x) for x in (2.0, 5.0, 10.0, 40.0, 75.0)]))
    assert fit is not None
    assert (fit.intercept, fit.slope) == pytest.approx((90.3, -0.6))
    assert fit.residual == pytest.approx(0, abs=1e-9)
    assert str(fit).startswith("f1 ≈ 90.3 - 0.6 x speedup (5 targets, ±")


def test_the_fit_has_the_least_squared_distance() -> None:
    points = [(2.0, 80.0), (3.0, 81.0), (4.0, 76.0)]
    fit = fit_metric(family(points))
    assert fit is not None

    def distance(intercept: float, slope: float) -> float:
        return sum((intercept + slope * x - y) ** 2 for x, y in points)

    best = distance(fit.intercept, fit.slope)
    assert fit.residual == pytest.approx((best / 3) ** 0.5)
    for change in (-0.01, 0.01):
        assert best < distance(fit.intercept + change, fit.slope)
        assert best < distance(fit.intercept, fit.slope + change)


def test_predicted_speedups_are_used_if_none_was_measured() -> None:
    made = family([(2.0, 3.0), (4.0, 5.0), (6.0, 7.0)])
    for metrics in made:
        metrics["predicted"], metrics["measured"] = metrics["measured"], None
    fit = fit_metric(made)
    assert fit is not None
    assert fit.slope == pytest.approx(1.0)


def test_two_targets_are_too_few_for_a_fit() -> None:
    assert fit_metric(family([(2.0, 3.0), (4.0, 5.0)])) is None


def test_members_with_the_same_metric_have_no_slope() -> None:
    """It would be the noise of rounding."""
    assert fit_metric(family([(2.0, 0.6), (3.0, 0.6), (5.0, 0.6)])) is None
    assert fit_metric(family([(2.0, 0.6), (3.0, 0.6), (5.0, 0.6001)])) is not None

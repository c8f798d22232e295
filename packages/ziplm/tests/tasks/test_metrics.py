"""Metrics of classes have the values of scikit-learn, bit by bit."""

import numpy as np
import pytest
import sklearn.metrics
from ziplm.tasks.metrics import f1, macro_f1, matthews


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("quality", [0.0, 0.5, 0.95])
def test_metrics_of_random_predictions(classes: int, quality: float) -> None:
    generator = np.random.default_rng(classes)
    for count in [2, 3, 5, 10, 50, 1000] * 5:
        labels = generator.integers(classes, size=count)
        guesses = generator.integers(classes, size=count)
        predictions = np.where(generator.random(count) < quality, labels, guesses)
        expected = sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0)
        assert macro_f1(predictions, labels) == expected
        if np.ptp(predictions) and np.ptp(labels):
            assert matthews(predictions, labels) == sklearn.metrics.matthews_corrcoef(labels, predictions)
        if classes == 2:
            expected = sklearn.metrics.f1_score(labels, predictions, zero_division=0)
            assert f1(predictions, labels) == expected


def test_metrics_of_constant_predictions_are_zero_or_one() -> None:
    zeros, ones, mixed = np.zeros(4, int), np.ones(4, int), np.array([0, 1, 1, 0])
    assert [f1(zeros, zeros), f1(zeros, ones), f1(ones, ones)] == [0, 0, 1]
    assert [macro_f1(zeros, zeros), macro_f1(zeros, ones)] == [1, 0]
    assert [matthews(zeros, mixed), matthews(mixed, ones), matthews(mixed, mixed)] == [0, 0, 1]
    assert matthews(1 - mixed, mixed) == -1


def test_classes_that_never_occur_do_not_count() -> None:
    predictions, labels = np.array([0, 5, 5, 0]), np.array([0, 5, 0, 0])
    assert macro_f1(predictions, labels) == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)

"""Metrics of predictions against labels. A correlation is 0 if predictions or labels are constant."""

from collections.abc import Callable

import numpy as np
import scipy.stats
import sklearn.metrics

ROUNDING = 1e-7  # relative; float32 outputs that vary by less are taken to be constant

Predictions = np.ndarray
"""Class numbers, or real numbers for a regression, of shape (examples,)."""


def accuracy(predictions: Predictions, labels: Predictions) -> float:
    """Return the share of predictions that are correct."""
    return float(np.mean(predictions == labels))


def f1(predictions: Predictions, labels: Predictions) -> float:
    """Return the F1 score of class 1."""
    return float(sklearn.metrics.f1_score(labels, predictions, zero_division=0))


def macro_f1(predictions: Predictions, labels: Predictions) -> float:
    """Return the mean F1 score over all classes that occur in predictions or labels."""
    return float(sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0))


def matthews(predictions: Predictions, labels: Predictions) -> float:
    """Return the Matthews correlation coefficient."""
    if not (np.ptp(predictions) and np.ptp(labels)):
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(predictions: Predictions, labels: Predictions) -> float:
    """Return the Pearson correlation coefficient."""
    return _correlation(lambda a, b: scipy.stats.pearsonr(a, b).statistic, predictions, labels)


def spearman(predictions: Predictions, labels: Predictions) -> float:
    """Return the Spearman rank correlation coefficient."""
    return _correlation(lambda a, b: scipy.stats.spearmanr(a, b).statistic, predictions, labels)


def _correlation(
    compute: Callable[[Predictions, Predictions], float], predictions: Predictions, labels: Predictions
) -> float:
    pair = (np.asarray(predictions, np.float64), np.asarray(labels, np.float64))
    if any(np.ptp(values) <= ROUNDING * np.abs(values).max() for values in pair):
        return 0.0
    return float(compute(*pair))


METRICS: dict[str, Callable[[Predictions, Predictions], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}

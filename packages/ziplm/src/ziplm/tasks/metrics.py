"""Metrics of predictions against labels. A correlation is 0 if predictions or labels are constant.

F1 and the Matthews coefficient equal those of scikit-learn, but are a hundred times as fast on few examples,
because intervals need them for a thousand resamples.
"""

from collections.abc import Callable

import numpy as np
import scipy.stats

ROUNDING = 1e-7  # relative; float32 outputs that vary by less are taken to be constant

Predictions = np.ndarray
"""Class numbers, or real numbers for a regression, of shape (examples,)."""


def accuracy(predictions: Predictions, labels: Predictions) -> float:
    """Return the share of predictions that are correct."""
    return float(np.mean(predictions == labels))


def f1(predictions: Predictions, labels: Predictions) -> float:
    """Return the F1 score of class 1."""
    total = int(np.sum(predictions == 1) + np.sum(labels == 1))
    return 2 * int(np.sum((predictions == 1) & (labels == 1))) / total if total else 0.0


def macro_f1(predictions: Predictions, labels: Predictions) -> float:
    """Return the mean F1 score over all classes that occur in predictions or labels."""
    right, found, wanted = _class_counts(predictions, labels)
    occur = found + wanted > 0
    return float(np.mean(2 * right[occur] / (found + wanted)[occur]))


def matthews(predictions: Predictions, labels: Predictions) -> float:
    """Return the Matthews correlation coefficient."""
    if not (np.ptp(predictions) and np.ptp(labels)):
        return 0.0
    right, found, wanted = _class_counts(predictions, labels)
    count = len(labels)
    shared = count * int(right.sum()) - int(found @ wanted)
    return float(shared / np.sqrt(float(count**2 - int(found @ found)) * (count**2 - int(wanted @ wanted))))


def pearson(predictions: Predictions, labels: Predictions) -> float:
    """Return the Pearson correlation coefficient."""
    return _correlation(lambda a, b: scipy.stats.pearsonr(a, b).statistic, predictions, labels)


def spearman(predictions: Predictions, labels: Predictions) -> float:
    """Return the Spearman rank correlation coefficient."""
    return _correlation(lambda a, b: scipy.stats.spearmanr(a, b).statistic, predictions, labels)


def _class_counts(predictions: Predictions, labels: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count, for each class, the correct predictions, all predictions and the labels; each (classes,)."""
    classes = int(max(predictions.max(), labels.max())) + 1
    counted = (labels[predictions == labels], predictions, labels)
    right, found, wanted = (np.bincount(values, minlength=classes) for values in counted)
    return right, found, wanted


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

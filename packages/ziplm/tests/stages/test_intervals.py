"""Intervals of metrics: closed forms, coverage on simulated data, and pairing."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.stats
from ziplm import UsageError
from ziplm.stages.intervals import difference_interval, metric_intervals, wilson
from ziplm.tasks import Splits, Task
from ziplm.tasks.base import Predictions

REPETITIONS = 400
LOWEST, HIGHEST = 0.92, 0.98  # 95 % ± 2.8 standard errors of a share of 400


class Means(Task):
    """A task whose metrics are the share of ones, the mean of numbers, and its square."""

    name = "means"
    metric = "mean"
    proportions: ClassVar[tuple[str, ...]] = ("share",)

    def load_splits(self, *_: Any) -> Splits:
        raise AssertionError("predictions are given")

    def predict(self, *_: Any, **__: Any) -> Predictions:
        raise AssertionError("predictions are given")

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        mean = float(np.mean(predictions["numbers"]))
        return {"share": float(np.mean(predictions["ones"])), "mean": mean, "square": mean**2}


def of(numbers: np.ndarray) -> Predictions:
    return {"numbers": numbers, "ones": numbers > 0}


@pytest.mark.parametrize(("ones", "count"), [(0, 10), (3, 10), (10, 10), (1, 1), (412, 872), (999, 1000)])
def test_the_wilson_interval_is_that_of_scipy(ones: int, count: int) -> None:
    expected = scipy.stats.binomtest(ones, count).proportion_ci(0.95, method="wilson")
    assert wilson(ones / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)
    low, high = wilson(ones / count, count)
    assert 0 <= low <= ones / count <= high <= 1
    assert high - low > 0


def test_the_ends_of_a_wilson_interval_are_rejected_at_exactly_five_per_cent() -> None:
    share, count = 0.83, 872
    for end in wilson(share, count):
        deviation = (share - end) / math.sqrt(end * (1 - end) / count)
        assert 2 * scipy.stats.norm.sf(abs(deviation)) == pytest.approx(0.05, rel=1e-9)


def test_the_interval_of_a_mean_is_near_the_normal_approximation() -> None:
    numbers = np.random.default_rng(0).normal(3.0, 2.0, 500)
    low, high = metric_intervals(Means(), of(numbers), resamples=4000)["mean"]
    half = 1.96 * numbers.std() / math.sqrt(len(numbers))
    assert (low, high) == pytest.approx((numbers.mean() - half, numbers.mean() + half), abs=0.06 * half)
    # Control: the interval of a quarter of the examples is about twice as wide.
    wide = metric_intervals(Means(), of(numbers[:125]), resamples=4000)["mean"]
    assert (wide[1] - wide[0]) / (high - low) == pytest.approx(2.0, rel=0.2)


def test_all_metrics_see_the_same_resamples() -> None:
    numbers = np.random.default_rng(1).normal(3.0, 1.0, 60)
    found = metric_intervals(Means(), of(numbers), resamples=101)  # so that percentiles lie near samples
    assert list(found) == ["share", "mean", "square"]
    assert found["share"] == wilson(1.0, 60)
    expected = tuple(end**2 for end in found["mean"])
    assert found["square"] == pytest.approx(expected, rel=1e-2)


def test_intervals_depend_on_the_seed_alone() -> None:
    predictions = of(np.random.default_rng(2).normal(size=50))
    first = metric_intervals(Means(), predictions)
    np.random.default_rng(3).normal(size=5)
    assert metric_intervals(Means(), predictions) == first
    assert metric_intervals(Means(), predictions, seed=1)["mean"] != first["mean"]
    assert metric_intervals(Means(), predictions, seed=1)["share"] == first["share"]


def share_covered(covers: Callable[[np.random.Generator], bool]) -> float:
    generator = np.random.default_rng(0)
    return float(np.mean([covers(generator) for _ in range(REPETITIONS)]))


@pytest.mark.parametrize("true", [0.3, 0.9])
def test_a_wilson_interval_covers_the_true_share(true: float) -> None:
    def covers(generator: np.random.Generator, shift: float = 0.0) -> bool:
        predictions = of(np.where(generator.random(200) < true, 1.0, -1.0))
        low, high = wilson(Means().metrics_of(predictions)["share"], 200)
        return low <= true + shift <= high

    assert LOWEST <= share_covered(covers) <= HIGHEST
    assert share_covered(lambda generator: covers(generator, 0.05)) < LOWEST  # control: a wrong share


def test_a_bootstrap_interval_covers_the_true_mean() -> None:
    def covers(generator: np.random.Generator, shift: float = 0.0) -> bool:
        predictions = of(generator.exponential(2.0, 100))
        low, high = metric_intervals(Means(), predictions, resamples=200)["mean"]
        return low <= 2.0 + shift <= high

    assert LOWEST <= share_covered(covers) <= HIGHEST
    assert share_covered(lambda generator: covers(generator, 0.2)) < LOWEST  # control: a wrong mean


def correlated(generator: np.random.Generator, count: int = 150) -> tuple[Predictions, Predictions]:
    """Return predictions of two models with means 0.9 and 1 that find the same examples hard."""
    common = generator.normal(0.0, 1.0, count)
    compressed = 0.9 + common + generator.normal(0.0, 0.3, count)
    return of(compressed), of(1.0 + common + generator.normal(0.0, 0.3, count))


def test_a_paired_interval_covers_the_true_difference() -> None:
    def covers(generator: np.random.Generator, shift: float = 0.0) -> bool:
        low, high = difference_interval(Means(), *correlated(generator), resamples=200)["mean"]
        return low <= -0.1 + shift <= high

    assert LOWEST <= share_covered(covers) <= HIGHEST
    assert share_covered(lambda generator: covers(generator, 0.1)) < 0.5  # control: no difference


def test_a_paired_interval_is_narrower_than_an_unpaired_one() -> None:
    generator = np.random.default_rng(4)
    compressed, dense = correlated(generator)
    low, high = difference_interval(Means(), compressed, dense)["mean"]
    differences = compressed["numbers"] - dense["numbers"]
    expected = 2 * 1.96 * differences.std() / math.sqrt(len(differences))
    assert high - low == pytest.approx(expected, rel=0.12)
    # Control: in another order, the examples are no longer the same ones.
    shuffled = of(generator.permutation(dense["numbers"]))
    wide = difference_interval(Means(), compressed, shuffled)["mean"]
    separate = [metric_intervals(Means(), own)["mean"] for own in (compressed, dense)]
    unpaired = math.hypot(*(high - low for low, high in separate))
    assert wide[1] - wide[0] == pytest.approx(unpaired, rel=0.2)
    assert high - low < unpaired / 2


def test_the_difference_is_compressed_minus_dense() -> None:
    compressed, dense = correlated(np.random.default_rng(5), 2000)
    low, high = difference_interval(Means(), compressed, dense)["mean"]
    assert low < high < 0
    assert difference_interval(Means(), dense, compressed)["mean"] == pytest.approx((-high, -low))


def test_identical_predictions_have_no_difference() -> None:
    predictions = of(np.random.default_rng(6).normal(size=40))
    copies = {name: values.copy() for name, values in predictions.items()}
    found = difference_interval(Means(), predictions, copies)
    assert found == {"share": (0.0, 0.0), "mean": (0.0, 0.0), "square": (0.0, 0.0)}
    copies["numbers"][0] += 1.0  # control
    assert difference_interval(Means(), predictions, copies)["mean"] != (0.0, 0.0)


def test_a_single_example_has_no_bootstrap() -> None:
    predictions = of(np.array([2.0]))
    assert metric_intervals(Means(), predictions) == {"share": wilson(1.0, 1)}
    assert difference_interval(Means(), predictions, predictions) == {}


def test_different_numbers_of_examples_cannot_be_paired() -> None:
    with pytest.raises(UsageError, match="3 examples to evaluate on, but 4 predictions of the dense model"):
        difference_interval(Means(), of(np.zeros(3)), of(np.zeros(4)))

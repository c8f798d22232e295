"""Statistics for noisy timings: two estimates that are robust to other load, and bootstrap intervals.

Other load on the machine only ever adds time, in bursts. The mean of the samples, and even their median,
therefore depends on that load, and the minimum depends on a single sample. Between variants that are timed in
the same rounds, the ratio of 20th percentiles is stable. Between measurements made minutes apart, when the
load has changed, the mean of the fastest tenth is more stable: on two cores beside two or three busy
processes, the two halves of a profile of a BERT-base layer differed by at most 6 % at any size, against 10 %
with the 20th percentile. (The estimate was chosen among a dozen on that one recording, so expect slightly
worse agreement elsewhere.)
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
# Seconds per call: one array of shape (rounds, repeats within a round) per variant.
Samples = Sequence[FloatArray]

RESAMPLES = 1000
_CHUNK_ELEMENTS = 2_000_000

# Reduces the last dimension: (…, samples) -> (…).
Statistic = Callable[[FloatArray], FloatArray]


def percentile_20(samples: FloatArray) -> FloatArray:
    """Return the 20th percentile over the last dimension."""
    return np.asarray(np.percentile(samples, 20.0, axis=-1))


def fastest_tenth(samples: FloatArray) -> FloatArray:
    """Return the mean of the smallest tenth (count rounded up) over the last dimension."""
    count = math.ceil(samples.shape[-1] / 10)
    return np.asarray(np.partition(samples, count - 1, axis=-1)[..., :count].mean(axis=-1))


def estimates(samples: Samples, statistic: Statistic) -> FloatArray:
    """Return the statistic of each variant, of shape (variants,)."""
    return np.array([statistic(values.ravel()) for values in samples])


def bootstrap(samples: Samples, statistic: Statistic) -> FloatArray:
    """Return the statistic of each variant in resamples of the rounds, of shape (resamples, variants).

    All samples of a round are drawn together, because they met the same load, which then cancels in ratios.
    Rounds are drawn in circular blocks of about rounds^(1/3) neighbours, because neighbouring rounds meet
    similar load; drawing them one by one gives intervals that are too narrow.
    """
    rounds = len(samples[0])
    generator = np.random.default_rng(0)
    length = max(1, round(rounds ** (1 / 3)))
    blocks = math.ceil(rounds / length)
    starts = generator.integers(rounds, size=(RESAMPLES, blocks, 1))
    chosen = ((starts + np.arange(length)) % rounds).reshape(RESAMPLES, -1)[:, :rounds]  # (resamples, rounds)
    result = np.empty((RESAMPLES, len(samples)))
    for variant, values in enumerate(samples):
        step = max(1, _CHUNK_ELEMENTS // values.size)  # bounds the memory when there are very many rounds
        for first in range(0, RESAMPLES, step):
            drawn = values[chosen[first : first + step]]  # (step, rounds, repeats)
            result[first : first + step, variant] = statistic(drawn.reshape(len(drawn), -1))
    return result


def interval(resamples: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper ends of the percentile interval: (resamples, …) -> (…), (…)."""
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(resamples, [tail, 100.0 - tail], axis=0)
    return low, high


def relative_error(center: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Return the largest distance from a center to an end of its interval, relative to the center."""
    reach = np.maximum(high - center, center - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(reach == 0.0, 0.0, reach / center)
    return float(np.max(error))

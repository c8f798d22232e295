"""The statistics of noisy timings: two figures that other load hardly moves, and bootstrap intervals.

Other load only ever adds time, in bursts, so the mean and even the median of a run depend on the
neighbours; the minimum is an accident of one sample. Between two variants of the same round, the ratio of
20th percentiles is stable. Between two runs minutes apart, where the weather itself has changed, the mean
of the fastest tenth is more so: on two cores beside two or three busy processes, the halves of a profile
of a BERT-base layer agreed to 6 % at the worst size by it, and to 10 % by the 20th percentile (it was
chosen among a dozen on that one recording, so expect a little less).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
# For each variant, seconds per call: (rounds, repeats within a round).
Samples = Sequence[FloatArray]

RESAMPLES = 1000
_CHUNK_ELEMENTS = 2_000_000

# From samples (…, samples) to one figure (…).
Statistic = Callable[[FloatArray], FloatArray]


def percentile_20(samples: FloatArray) -> FloatArray:
    """The 20th percentile over the last dimension."""
    return np.asarray(np.percentile(samples, 20.0, axis=-1))


def fastest_tenth(samples: FloatArray) -> FloatArray:
    """The mean of the fastest tenth (rounded up) over the last dimension."""
    count = math.ceil(samples.shape[-1] / 10)
    return np.asarray(np.partition(samples, count - 1, axis=-1)[..., :count].mean(axis=-1))


def figures(samples: Samples, statistic: Statistic) -> FloatArray:
    """The statistic of each variant: (variants,)."""
    return np.array([statistic(values.ravel()) for values in samples])


def resampled(samples: Samples, statistic: Statistic) -> FloatArray:
    """The statistic of each variant in bootstrap resamples of the rounds: (resamples, variants).

    All samples of a round are drawn together, so what they share (a slow minute, a busy neighbour) stays
    shared and cancels in ratios. Rounds are drawn in circular blocks of about rounds^(1/3) neighbours,
    because slow minutes make neighbouring rounds alike; drawing them singly gives intervals that are too
    narrow.
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
    """Lower and upper ends of the percentile interval: (resamples, …) -> (…), (…)."""
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(resamples, [tail, 100.0 - tail], axis=0)
    return low, high


def relative_error(center: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """The larger half of each interval relative to its center; the worst of all."""
    reach = np.maximum(high - center, center - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(reach == 0.0, 0.0, reach / center)
    return float(np.max(error))

"""The statistics of noisy timings: the 20th percentile, and bootstrap intervals over rounds.

Other load only ever adds time, in bursts, so the mean and even the median of a run depend on the
neighbours; the minimum is an accident of one sample. The 20th percentile is low enough to be free of
load that comes and goes and has enough samples below it to be stable.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
# For each variant, seconds per call: (rounds, repeats within a round).
Samples = Sequence[FloatArray]

PERCENTILE = 20.0
RESAMPLES = 1000
_CHUNK_ELEMENTS = 2_000_000


def typical(samples: Samples) -> FloatArray:
    """The 20th percentile of each variant: (variants,)."""
    return np.array([np.percentile(values, PERCENTILE) for values in samples])


def resampled(samples: Samples, seed: int = 0) -> FloatArray:
    """The 20th percentiles of bootstrap resamples of the rounds: (resamples, variants).

    All samples of a round are drawn together, so what they share (a slow minute, a busy neighbour) stays
    shared and cancels in ratios. Rounds are drawn in circular blocks of about rounds^(1/3) neighbours,
    because slow minutes make neighbouring rounds alike; drawing them singly gives intervals that are too
    narrow.
    """
    rounds = len(samples[0])
    generator = np.random.default_rng(seed)
    length = max(1, round(rounds ** (1 / 3)))
    blocks = math.ceil(rounds / length)
    starts = generator.integers(rounds, size=(RESAMPLES, blocks, 1))
    chosen = ((starts + np.arange(length)) % rounds).reshape(RESAMPLES, -1)[:, :rounds]  # (resamples, rounds)
    result = np.empty((RESAMPLES, len(samples)))
    for variant, values in enumerate(samples):
        step = max(1, _CHUNK_ELEMENTS // values.size)  # bounds the memory when there are very many rounds
        for first in range(0, RESAMPLES, step):
            drawn = values[chosen[first : first + step]]  # (step, rounds, repeats)
            result[first : first + step, variant] = np.percentile(drawn, PERCENTILE, axis=(1, 2))
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

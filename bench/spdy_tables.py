"""Problems as from a latency table, for all parts of bench/spdy.py."""

import math

import numpy as np
from spdy_search import Problem

FIXED = 0.03  # share of the dense time outside all modules


def latency_problem(modules: int, speedup: float, seed: int) -> Problem:
    """Return a problem as from a latency table of BERT-base, with attention and FFN modules alternating.

    Attention has 0 to 12 heads, the FFN 44 widths. A module's prior rises with the share removed, along a
    curve with a random bend and 2 % of noise, and jumps when the whole module is removed. Sensitivities are
    spread over two orders of magnitude.
    """
    rng = np.random.default_rng(seed)
    heads = np.arange(12, -1, -1)
    widths = np.array([*(int(3072 * (1 - round(1 - 0.9**i, 4))) for i in range(43)), 0])
    attention = np.where(heads > 0, 0.25 + 0.75 * heads / 12, 0.03) * 1.0e-3
    ffn = np.where(widths > 0, 0.12 + 0.88 * widths / 3072, 0.02) * 1.9e-3
    costs, priors = [], []
    for module in range(modules):
        sizes, cost = (heads, attention) if module % 2 == 0 else (widths, ffn)
        removed = 1 - sizes / sizes[0]
        bend, sensitivity = rng.uniform(1, 5), 10 ** rng.uniform(-2, 0)
        prior = 0.8 * sensitivity * np.expm1(bend * removed) / np.expm1(bend)
        prior *= np.exp(rng.normal(0, 0.02, len(prior)))
        prior[-1] = sensitivity
        costs.append(cost)
        priors.append(np.maximum.accumulate(prior))
    dense = math.fsum(row[0] for row in costs)
    return Problem(costs, priors, dense * ((1 + FIXED) / speedup - FIXED))

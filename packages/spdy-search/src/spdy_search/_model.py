"""What the evaluations so far say about how much each module's prior matters.

The loss is taken to change by Σ θ·(change of prior), with unknown θ per module. Before any evaluation all θ
are one unknown number, give or take as much again. An evaluation is trusted the less the further its
assignment is from the best one, because the loss is only locally of that form: its standard deviation is a
share κ of the distance. The number and κ are those under which the evaluations are most likely.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

MISTRUST = (0.03, 0.1, 0.3)  # values of κ that are tried
SMALLEST = 0.05  # of the common θ: weights stay above it, so that no module is thought to be free


class Posterior(NamedTuple):
    """θ is normally distributed.

    Attributes:
        mean: float64 (modules,).
        factor: float64 (modules, modules), lower triangular; the precision is factor·factorᵀ.
        common: What all θ are before anything is known about them.
    """

    mean: NDArray[np.float64]
    factor: NDArray[np.float64]
    common: float

    def sample(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Weights (count, modules) drawn from the distribution and made positive."""
        noise = solve_triangular(self.factor.T, rng.standard_normal((len(self.mean), count)))
        return self.positive(self.mean + noise.T)

    def positive(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights (…, modules) raised to SMALLEST where they are below it, the largest of each row 1."""
        raised = np.maximum(weights, SMALLEST * self.common)
        largest: NDArray[np.float64] = raised.max(axis=-1, keepdims=True)
        return raised / largest


def fit(priors: NDArray[np.float64], losses: NDArray[np.float64]) -> Posterior:
    """The posterior after evaluations with `priors` (n, modules) and finite `losses` (n,)."""
    modules = priors.shape[1]
    nothing_known = Posterior(np.ones(modules), np.eye(modules), 1.0)
    if not len(losses):
        return nothing_known
    best = int(losses.argmin())
    others = np.arange(len(losses)) != best
    change = (priors - priors[best])[others]  # (n - 1, modules)
    losses = losses / (np.abs(losses).max() or 1.0)  # weights are relative, so that the unit may be any
    rise = (losses - losses[best])[others]
    distance = np.abs(change).sum(axis=1)
    if not rise.any() or not distance.any():
        return nothing_known
    rise = rise / rise.max()
    distance += 0.01 * distance.mean()  # an evaluation with the best one's priors has no infinite weight
    return max((_fit(change, rise, share * distance) for share in MISTRUST), key=lambda pair: pair[0])[1]


def _fit(
    change: NDArray[np.float64], rise: NDArray[np.float64], deviation: NDArray[np.float64]
) -> tuple[float, Posterior]:
    """Log-likelihood and posterior of rise = change @ θ + deviation·noise, at the likeliest common θ."""
    count, modules = change.shape
    scaled = change / deviation[:, None]
    y = rise / deviation
    s = scaled.sum(axis=1)
    factor = np.linalg.cholesky(np.eye(modules) + scaled.T @ scaled).astype(np.float64)
    half_y, half_s = solve_triangular(factor, scaled.T @ np.stack([y, s], axis=1), lower=True).T
    yy, ys, ss = y @ y - half_y @ half_y, y @ s - half_y @ half_s, s @ s - half_s @ half_s
    yy = max(yy, 1e-12 * (y @ y))  # positive but for rounding
    # With u = 1/common: the maximum of count·log u - (u²·yy - 2u·ys + ss)/2.
    u = float((ys + np.sqrt(ys * ys + 4 * count * yy)) / (2 * yy))
    likelihood = count * np.log(u) - (u * u * yy - 2 * u * ys + ss) / 2
    likelihood -= np.log(np.diag(factor)).sum() + np.log(deviation).sum()
    half = solve_triangular(factor, 1 + scaled.T @ (u * y), lower=True)
    return float(likelihood), Posterior(solve_triangular(factor.T, half) / u, factor * u, 1 / u)

"""The posterior of the loss model: expected harm, random harms and expected improvement.

`_model` explains the formula, the unknowns θ, η and c, and the factors f.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import ndtr

from ._harm import SMALLEST, Array, Harm, Terms
from ._problem import Levels

FARTHEST_FACTOR = 10.0  # f stays within this factor of 1; beyond it, a module and its pairs would be ignored
LARGEST_STEP = 1 / 0.7  # largest factor by which f changes after an evaluation
SMALLEST_VARIANCE = 1e-24  # keeps the standard deviation of a known assignment above 0


class Settings(NamedTuple):
    """Standard deviations of the unknowns before any evaluation, and of the evaluations around the formula.

    Attributes:
        spread: Standard deviation of θ.
        curvature: Standard deviation of η, relative to `spread`.
        interaction: Standard deviation of c.
        misfit: Standard deviation of an evaluation around the formula, relative to its distance from the best
            evaluation, Σ |change of prior|.
    """

    spread: float = 1.0
    curvature: float = 0.0
    interaction: float = 0.03
    misfit: float = 0.03

    @property
    def variances(self) -> Array:
        """Variances of θ, η and c, float64 (3,)."""
        return np.array([self.spread, self.spread * self.curvature, self.interaction]) ** 2


class Posterior(NamedTuple):
    """Distribution of the harm given n evaluations, of which the first has the lowest loss.

    Attributes:
        tables: Terms of the problem.
        levels: int64 (n, modules), evaluated assignments.
        rise: float64 (n,), losses above the lowest loss, in the unit of the model.
        deviation: float64 (n,), standard deviation of `rise` around the formula.
        cholesky: float64 (n, n), lower Cholesky factor of the covariance of `rise`.
        settings: Settings under which the evaluations are most likely.
        factors: float64 (modules,), f.
    """

    tables: Terms
    levels: Levels
    rise: Array
    deviation: Array
    cholesky: Array
    settings: Settings
    factors: Array

    def mean(self) -> Harm:
        """Expected harm."""
        return self._harm(*self._expected_unknowns())

    def draw(self, rng: np.random.Generator) -> Harm:
        """Draw one harm at random.

        The unknowns are drawn from their distribution before any evaluation, then corrected by the
        evaluations (Matheron's rule).
        """
        modules = len(self.factors)
        theta, eta, interaction = np.sqrt(self.settings.variances)
        half = np.triu(interaction * rng.standard_normal((modules, modules)), 1)
        corrected = self._corrected(
            initial_theta(self.factors) + theta * rng.standard_normal(modules),
            eta * rng.standard_normal(modules),
            half + half.T,
            noise=self.deviation * rng.standard_normal(len(self.rise)),
        )
        return self._harm(*corrected)

    def next_factors(self) -> Array:
        """Factors f for the next fit, moved towards the expected θ relative to the median θ."""
        theta, _, _ = self._expected_unknowns()
        typical = max(float(np.median(theta)), SMALLEST)
        step: Array = np.clip(theta / typical, 1 / LARGEST_STEP, LARGEST_STEP)
        logs = np.log(self.factors * step)
        farthest = math.log(FARTHEST_FACTOR)
        moved: Array = np.exp(np.clip(logs - logs.mean(), -farthest, farthest))
        return moved

    def expected_rise(self, levels: Levels) -> Array:
        """Expected loss above the lowest one, (k,), of assignments (k, modules)."""
        mean = self.mean()
        return mean.total(self.tables, levels) - mean.total(self.tables, self.levels[:1])

    def improvement(self, levels: Levels) -> tuple[Array, Array]:
        """Expected improvement on the lowest loss, and expected rise, both (k,), of assignments (k, modules).

        The improvement is 0 where the loss rises. Its expectation is therefore large where the expected rise
        is low or very uncertain.
        """
        rise = self.expected_rise(levels)
        deviation = self._rise_deviation(levels)
        z = -rise / deviation
        return deviation * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) - rise * ndtr(z), rise

    def _rise_deviation(self, levels: Levels) -> Array:
        """Standard deviation of the rise, (k,), of assignments (k, modules)."""
        candidates, done = self._terms(levels), self._terms(self.levels)
        best = Terms(*(term[:1] for term in done))
        variances = self.settings.variances
        of_best = np.tensordot(variances, best.covariances(done), axes=1)  # (1, n)
        shared = np.tensordot(variances, candidates.covariances(done), axes=1)  # (k, n)
        variance = variances @ candidates.variances() - 2 * shared[:, 0] + of_best[0, 0]
        shared = shared - shared[:, :1] - of_best + of_best[0, 0]
        known = solve_triangular(self.cholesky, shared.T, lower=True)
        return np.asarray(np.sqrt(np.maximum(variance - (known**2).sum(axis=0), SMALLEST_VARIANCE)))

    def _expected_unknowns(self) -> tuple[Array, Array, Array]:
        """Expected θ (modules,), η (modules,) and c (modules, modules)."""
        modules = len(self.factors)
        eta, interaction = np.zeros(modules), np.zeros((modules, modules))
        return self._corrected(initial_theta(self.factors), eta, interaction, noise=np.zeros_like(self.rise))

    def _corrected(
        self, theta: Array, eta: Array, interaction: Array, noise: Array
    ) -> tuple[Array, Array, Array]:
        """Correct θ, η and c by the evaluations, which differ from the formula by `noise` (n,)."""
        prior, log_term, root = self._terms(self.levels)
        value = prior @ theta + log_term @ eta + ((root @ interaction) * root).sum(axis=1) / 2
        share = cho_solve((self.cholesky, True), self.rise - (value - value[0]) - noise)
        share[0] -= share.sum()  # rises are differences from the first evaluation, so the shares add up to 0
        variances = self.settings.variances
        interaction = interaction + variances[2] * ((root.T * share) @ root)
        np.fill_diagonal(interaction, 0.0)
        return (
            theta + variances[0] * (prior.T @ share),
            eta + variances[1] * (log_term.T @ share),
            interaction,
        )

    def _harm(self, theta: Array, eta: Array, interaction: Array) -> Harm:
        alone = theta[:, None] * self.tables.prior + eta[:, None] * self.tables.log_term
        alone = np.maximum(alone, SMALLEST * self.tables.prior)
        root = np.sqrt(self.factors)
        return Harm(self.factors[:, None] * alone, interaction * root[:, None] * root)

    def _terms(self, levels: Levels) -> Terms:
        return self.tables.at(levels).scaled_by(self.factors)


def initial_theta(factors: Array) -> Array:
    """Expected θ (modules,) before any evaluation, when the priors are multiplied by `factors`."""
    return 1 - np.log(factors)

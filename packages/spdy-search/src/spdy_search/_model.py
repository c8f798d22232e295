"""What the evaluations so far say about the loss of all other assignments.

Errors add up like vectors: where single modules would raise the loss by pᵢ = |eᵢ|², together they raise it
by |Σ eᵢ|² = Σ pᵢ + Σ cᵢⱼ √(pᵢpⱼ). So the loss is taken to be, but for a factor and a constant,

    Σᵢ (θᵢ pᵢ + ηᵢ pᵢ log pᵢ) + Σ_{i<j} cᵢⱼ √(pᵢpⱼ)

with p the priors, and θ near 1, η and c near 0 until evaluations say otherwise: Bayesian linear regression,
with η for modules whose harm rises more or less steeply than their prior. An evaluation is trusted the less
the further it is from the best one, because no loss is quite of that form. How near and how much less are
the settings under which the evaluations are most likely: where the priors are good, evaluations say so, and
the search stays close to them.

Modules matter more or less by factors, so what is normally distributed is log θ. With the present estimate f
of θ, all of the above is done with f·p instead of p, and what θ stands for there is the tangent of the
exponential: normal around 1 - log f. After every evaluation f moves towards what has been learnt.

There are more unknown c than evaluations. So the algebra is that of a Gaussian process, in which the
covariance of the evaluations is factorised, not that of the unknowns.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import ndtr

from ._problem import Levels, Problem

Array: TypeAlias = NDArray[np.float64]

SMALLEST = 0.05  # of its prior: no module's own harm is thought to be below it, so that none is free
FARTHEST_FACTOR = 10.0  # f is within this factor of 1; beyond it, a module and its pairs would be forgotten
LARGEST_STEP = 1 / 0.7  # by which f changes at most after an evaluation
JITTER = 1e-10  # of the largest variance, for evaluations that nearly repeat each other


class Settings(NamedTuple):
    """Standard deviations of what is unknown, in units of the common factor.

    Attributes:
        spread: Of θ.
        bend: Of η, in units of `spread`.
        pairs: Of c.
        mistrust: Of an evaluation, in units of its distance from the best one, Σ |change of prior|.
    """

    spread: float = 1.0
    bend: float = 0.0
    pairs: float = 0.03
    mistrust: float = 0.03

    @property
    def variances(self) -> Array:
        """Of θ, η and c, float64 (3,)."""
        return np.array([self.spread, self.spread * self.bend, self.pairs]) ** 2


CHOICES = {
    "mistrust": (0.003, 0.01, 0.03, 0.1, 0.3),
    "pairs": (0.0, 0.03, 0.1, 0.3),
    "spread": (0.15, 0.5, 1.0),
    "bend": (0.0, 0.3),
}


GOOD_PRIORS = min(CHOICES["spread"])


class Terms(NamedTuple):
    """p, p log p and √p: tables (modules, L) of a problem, or of assignments (n, modules)."""

    prior: Array
    bent: Array
    root: Array

    @classmethod
    def of(cls, problem: Problem) -> "Terms":
        """The tables of a problem. A module's unit of p in log p is the median of its useful levels."""
        prior, useful = problem.table.prior, problem.table.useful
        bent = np.zeros_like(prior)
        for row, choices, out in zip(prior, useful & (prior > 0), bent, strict=True):
            if choices.any():
                out[row > 0] = row[row > 0] * np.log(row[row > 0] / np.median(row[choices]))
        return cls(prior, bent, np.sqrt(prior))

    def at(self, levels: Levels) -> "Terms":
        """The terms of assignments (n, modules), from tables."""
        modules = np.arange(len(self.prior))
        return Terms(*(table[modules, levels] for table in self))

    def times(self, factors: Array) -> "Terms":
        """The terms of assignments with all priors multiplied by `factors` (modules,)."""
        return Terms(self.prior * factors, self.bent * factors, self.root * np.sqrt(factors))

    def products(self, other: "Terms") -> Array:
        """Covariances (3, n, m) of two sets of assignments that θ, η and c of variance 1 bring about."""
        prior, bent = self.prior @ other.prior.T, self.bent @ other.bent.T
        return np.stack([prior, bent, ((self.root @ other.root.T) ** 2 - prior) / 2])

    def squares(self) -> Array:
        """The diagonal of `products` with itself, (3, n)."""
        prior, bent = (self.prior**2).sum(axis=1), (self.bent**2).sum(axis=1)
        return np.stack([prior, bent, (self.prior.sum(axis=1) ** 2 - prior) / 2])


class Harm(NamedTuple):
    """One possible truth.

    Attributes:
        each: float64 (modules, L), what a module's levels do alone.
        pairs: float64 (modules, modules), c: symmetric, 0 on the diagonal.
    """

    each: Array
    pairs: Array

    def total(self, tables: Terms, levels: Levels) -> Array:
        """The harm (n,) of assignments (n, modules)."""
        root = tables.at(levels).root
        alone = self.each[np.arange(len(self.each)), levels].sum(axis=1)
        return np.asarray(alone + ((root @ self.pairs) * root).sum(axis=1) / 2)

    def weights(self, tables: Terms, levels: Levels) -> Array:
        """Factors (modules,) on the priors that make up this harm at one assignment, the largest 1."""
        modules = np.arange(len(self.each))
        # A module that does no harm there is judged by the most it can do.
        judged = np.where(tables.prior[modules, levels] > 0, levels, tables.prior.argmax(axis=1))
        root = tables.root[modules, levels]
        prior = tables.prior[modules, judged]
        share = self.each[modules, judged] + root * (self.pairs @ root) / 2
        weights = np.maximum(share / np.where(prior > 0, prior, 1.0), SMALLEST)
        return weights / float(weights.max())


class Posterior(NamedTuple):
    """What is known after n evaluations, the best one first; losses are in units of the common factor.

    Attributes:
        tables: The problem's terms.
        levels: int64 (n, modules).
        rise: float64 (n,), losses above the best one.
        deviation: float64 (n,), how far they may be off the form.
        factor: float64 (n, n), lower triangular, of the covariance of `rise`.
        settings: The likeliest ones.
        factors: float64 (modules,), f.
    """

    tables: Terms
    levels: Levels
    rise: Array
    deviation: Array
    factor: Array
    settings: Settings
    factors: Array

    def mean(self) -> Harm:
        """The expected harm."""
        return self._harm(*self._expected())

    def draw(self, rng: np.random.Generator) -> Harm:
        """One truth at random: drawn as if nothing had been evaluated, then corrected by what was."""
        modules = len(self.factors)
        theta, eta, pairs = np.sqrt(self.settings.variances)
        half = np.triu(pairs * rng.standard_normal((modules, modules)), 1)
        corrected = self._corrected(
            _centre(self.factors) + theta * rng.standard_normal(modules),
            eta * rng.standard_normal(modules),
            half + half.T,
            noise=self.deviation * rng.standard_normal(len(self.rise)),
        )
        return self._harm(*corrected)

    def next_factors(self) -> Array:
        """Where f moves, towards the expected θ in units of the typical one: for the next fit."""
        theta, _, _ = self._expected()
        typical = max(float(np.median(theta)), SMALLEST)
        step: Array = np.clip(theta / typical, 1 / LARGEST_STEP, LARGEST_STEP)
        logs = np.log(self.factors * step)
        farthest = math.log(FARTHEST_FACTOR)
        moved: Array = np.exp(np.clip(logs - logs.mean(), -farthest, farthest))
        return moved

    def _expected(self) -> tuple[Array, Array, Array]:
        modules = len(self.factors)
        nothing = np.zeros(modules), np.zeros((modules, modules))
        return self._corrected(_centre(self.factors), *nothing, noise=np.zeros_like(self.rise))

    def _corrected(self, theta: Array, eta: Array, pairs: Array, noise: Array) -> tuple[Array, Array, Array]:
        """θ, η and c as they are likeliest after the evaluations if they were these before."""
        prior, bent, root = self._terms(self.levels)
        value = prior @ theta + bent @ eta + ((root @ pairs) * root).sum(axis=1) / 2
        share = cho_solve((self.factor, True), self.rise - (value - value[0]) - noise)
        share[0] -= share.sum()  # what raises the others lowers the best, from which they are counted
        variances = self.settings.variances
        pairs = pairs + variances[2] * ((root.T * share) @ root)
        np.fill_diagonal(pairs, 0.0)
        return theta + variances[0] * (prior.T @ share), eta + variances[1] * (bent.T @ share), pairs

    def _harm(self, theta: Array, eta: Array, pairs: Array) -> Harm:
        each = theta[:, None] * self.tables.prior + eta[:, None] * self.tables.bent
        each = np.maximum(each, SMALLEST * self.tables.prior)
        root = np.sqrt(self.factors)
        return Harm(self.factors[:, None] * each, pairs * root[:, None] * root)

    def _terms(self, levels: Levels) -> Terms:
        return self.tables.at(levels).times(self.factors)

    def improvement(self, levels: Levels) -> tuple[Array, Array]:
        """Expected improvement on the best loss by assignments (k, modules), and expected rise, both (k,).

        The improvement counts a rise as 0. So it is large where the rise is low or little is known.
        """
        candidates, done = self._terms(levels), self._terms(self.levels)
        best = Terms(*(term[:1] for term in done))
        variances = self.settings.variances
        of_best = np.tensordot(variances, best.products(done), axes=1)  # (1, n)
        shared = np.tensordot(variances, candidates.products(done), axes=1)  # (k, n)
        variance = variances @ candidates.squares() - 2 * shared[:, 0] + of_best[0, 0]
        shared = shared - shared[:, :1] - of_best + of_best[0, 0]
        known = solve_triangular(self.factor, shared.T, lower=True)
        deviation = np.sqrt(np.maximum(variance - (known**2).sum(axis=0), 1e-24))
        mean = self.mean()
        rise = mean.total(self.tables, levels) - mean.total(self.tables, self.levels[:1])
        z = -rise / deviation
        return deviation * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) - rise * ndtr(z), rise


def _centre(factors: Array) -> Array:
    """What θ is around before anything is known, if f has come to `factors`."""
    return 1 - np.log(factors)


class _Evidence(NamedTuple):
    """Evaluations as `_likelihood` needs them, all counted from the best, which comes first."""

    rise: Array  # (n,), of the loss, the largest 1
    prior_rise: Array  # (n,)
    distance: Array  # (n,)
    products: Array  # (3, n, n)


def fit(tables: Terms, levels: Levels, losses: Array, settings: Settings, factors: Array) -> Posterior:
    """The posterior after evaluations `levels` (n, modules), n ≥ 1, with finite `losses` (n,), lowest first.

    Settings are improved one at a time from those given, until none can be; `factors` (modules,) is f.
    """
    done = tables.at(levels).times(factors)
    rise = losses / (float(np.abs(losses).max()) or 1.0)  # the unit of the loss may be any
    rise = rise - rise[0]
    distance = np.abs(done.prior - done.prior[0]).sum(axis=1)
    products = done.products(done)
    products = products - products[:, :1] - products[:, :, :1] + products[:, :1, :1]
    prior_rise = (done.prior - done.prior[0]) @ _centre(factors)
    evidence = _Evidence(
        rise / (float(rise.max()) or 1.0),
        prior_rise,
        distance + 0.01 * distance.mean(),  # one with the best one's priors has no infinite weight
        products,
    )
    likelihood, unit, factor = _likelihood(evidence, settings)
    improved = len(losses) > 1
    while improved:
        improved = False
        for name, values in CHOICES.items():
            for value in values:  # all: between good and bad priors there is a valley
                changed = settings._replace(**{name: value})
                result = _likelihood(evidence, changed)
                if result[0] > likelihood:
                    (likelihood, unit, factor), settings, improved = result, changed, True
    deviation = settings.mistrust * evidence.distance
    return Posterior(tables, levels, evidence.rise * unit, deviation, factor, settings, factors)


def _likelihood(evidence: _Evidence, settings: Settings) -> tuple[float, float, Array]:
    """Log-likelihood at the likeliest common factor, 1 / that factor, and the factorised covariance."""
    rise, prior_rise, distance, products = evidence
    covariance = np.tensordot(settings.variances, products, axes=1)
    diagonal = covariance.diagonal() + (settings.mistrust * distance) ** 2
    diagonal += JITTER * diagonal.max()
    diagonal[0] = 1.0  # the best is where counting begins: its row is 0 and says nothing
    diagonal[diagonal == 0] = 1.0  # nothing differs in its priors
    np.fill_diagonal(covariance, diagonal)
    factor = np.linalg.cholesky(covariance).astype(np.float64)
    y, s = solve_triangular(factor, np.stack([rise, prior_rise], axis=1), lower=True).T
    yy, ys, ss = float(y @ y), float(y @ s), float(s @ s)
    if yy == 0:
        return -ss / 2, 1.0, factor
    # With u = 1 / factor: the maximum of count·log u - (u²·yy - 2u·ys + ss) / 2.
    count = len(rise) - 1
    u = (ys + math.sqrt(ys * ys + 4 * count * yy)) / (2 * yy)
    likelihood = count * math.log(u) - (u * u * yy - 2 * u * ys + ss) / 2
    return likelihood - float(np.log(factor.diagonal()).sum()), u, factor

"""A Bayesian model of the loss, fitted to the evaluations so far.

Errors add up like vectors: if module i alone raises the loss by pᵢ = |eᵢ|², all modules together raise it by
|Σ eᵢ|² = Σ pᵢ + Σ cᵢⱼ √(pᵢpⱼ). The model therefore assumes that the loss is, up to a common factor and a
constant,

    Σᵢ (θᵢ pᵢ + ηᵢ pᵢ log pᵢ) + Σ_{i<j} cᵢⱼ √(pᵢpⱼ)

where p are the priors. θ corrects how much a module matters, η how steeply its harm rises with its prior, and
c is the interaction of two modules. Before any evaluation θ is distributed around 1, and η and c around 0:
this is Bayesian linear regression. No loss has exactly this form, so an evaluation is trusted less the
farther it is from the best one. `Settings` holds the widths of these distributions and the rate at which the
trust falls; `fit` chooses the settings under which the evaluations are most likely. If the priors are good,
the evaluations show it, and the search stays close to the priors.

The importance of modules differs by factors, so log θ is assumed to be normally distributed rather than θ. To
keep the model linear, it is fitted with f·p in place of p, where f is the current estimate of θ, and with the
tangent 1 + log(θ / f) in place of θ / f. This tangent, which the code calls θ, is normally distributed around
1 - log f. After every evaluation f moves towards the new estimate.

There are more unknown c than evaluations. The computations are therefore those of a Gaussian process, which
factorises the covariance of the evaluations instead of that of the unknowns.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ._harm import Array, Terms
from ._posterior import Posterior, Settings, initial_theta
from ._problem import Levels

CHOICES = {
    "misfit": (0.003, 0.01, 0.03, 0.1, 0.3),
    "interaction": (0.0, 0.03, 0.1, 0.3),
    "spread": (0.15, 0.5, 1.0),
    "curvature": (0.0, 0.3),
}
GOOD_PRIORS = min(CHOICES["spread"])  # spread at which the evaluations agree with the priors
# Added to distances, relative to their mean: an evaluation with the priors of the best one would otherwise
# have infinite weight.
EXTRA_DISTANCE = 0.01
JITTER = 1e-10  # relative to the largest variance, for evaluations that nearly repeat each other


class _Evidence(NamedTuple):
    """The evaluations, relative to the first one, which has the lowest loss.

    Attributes:
        rise: float64 (n,), rise of the loss, scaled so that the largest is 1.
        prior_rise: float64 (n,), rise of the harm expected before any evaluation.
        distance: float64 (n,), Σ |change of prior|, plus EXTRA_DISTANCE.
        covariances: float64 (3, n, n), covariances of the rises due to θ, η and c of variance 1.
    """

    rise: Array
    prior_rise: Array
    distance: Array
    covariances: Array


class _Likelihood(NamedTuple):
    """How likely the evaluations are under some settings.

    Attributes:
        log: Log-likelihood, up to a constant.
        unit: Likeliest unit: `rise` times this is in the unit of the model.
        cholesky: float64 (n, n), lower Cholesky factor of the covariance of the rises.
    """

    log: float
    unit: float
    cholesky: Array


def fit(tables: Terms, levels: Levels, losses: Array, settings: Settings, factors: Array) -> Posterior:
    """Fit the model to evaluations.

    Args:
        tables: Terms of the problem.
        levels: int64 (n, modules), the evaluated assignments, n ≥ 1.
        losses: float64 (n,), their losses, finite, lowest first.
        settings: Settings from which to start the choice of the likeliest ones.
        factors: float64 (modules,), f.
    """
    evidence = _evidence(tables.at(levels).scaled_by(factors), losses, factors)
    settings, likelihood = _likeliest_settings(evidence, settings)
    deviation = settings.misfit * evidence.distance
    rise = evidence.rise * likelihood.unit
    return Posterior(tables, levels, rise, deviation, likelihood.cholesky, settings, factors)


def _evidence(done: Terms, losses: Array, factors: Array) -> _Evidence:
    rise = losses / (float(np.abs(losses).max()) or 1.0)  # avoids overflow, whatever the unit of the loss
    rise = rise - rise[0]
    change = done.prior - done.prior[0]
    distance = np.abs(change).sum(axis=1)
    covariances = done.covariances(done)
    covariances = (
        covariances - covariances[:, :1] - covariances[:, :, :1] + covariances[:, :1, :1]
    )  # of the differences from the first evaluation
    return _Evidence(
        rise=rise / (float(rise.max()) or 1.0),
        prior_rise=change @ initial_theta(factors),
        distance=distance + EXTRA_DISTANCE * distance.mean(),
        covariances=covariances,
    )


def _likeliest_settings(evidence: _Evidence, settings: Settings) -> tuple[Settings, _Likelihood]:
    """Improve one setting at a time, until no change of a single setting makes the evaluations likelier."""
    best = _likelihood(evidence, settings)
    improved = len(evidence.rise) > 1
    while improved:
        improved = False
        for name, values in CHOICES.items():
            # Try all values, not only neighbours: the likelihood has a valley between good and bad priors.
            for value in values:
                changed = settings._replace(**{name: value})
                likelihood = _likelihood(evidence, changed)
                if likelihood.log > best.log:
                    settings, best, improved = changed, likelihood, True
    return settings, best


def _likelihood(evidence: _Evidence, settings: Settings) -> _Likelihood:
    """The likelihood of the evaluations at the likeliest unit."""
    cholesky = np.linalg.cholesky(_covariance(evidence, settings)).astype(np.float64)
    rises = np.stack([evidence.rise, evidence.prior_rise], axis=1)
    y, s = solve_triangular(cholesky, rises, lower=True).T
    yy, ys, ss = float(y @ y), float(y @ s), float(s @ s)
    if yy == 0:
        return _Likelihood(-ss / 2, 1.0, cholesky)
    # The unit u maximises count·log u - (u²·yy - 2u·ys + ss) / 2.
    count = len(evidence.rise) - 1
    u = (ys + math.sqrt(ys * ys + 4 * count * yy)) / (2 * yy)
    log = count * math.log(u) - (u * u * yy - 2 * u * ys + ss) / 2
    return _Likelihood(log - float(np.log(cholesky.diagonal()).sum()), u, cholesky)


def _covariance(evidence: _Evidence, settings: Settings) -> Array:
    """Covariance (n, n) of the rises."""
    covariance: Array = np.tensordot(settings.variances, evidence.covariances, axes=1)
    diagonal = covariance.diagonal() + (settings.misfit * evidence.distance) ** 2
    diagonal += JITTER * diagonal.max()
    diagonal[0] = 1.0  # the first rise is 0 by definition: its row is 0 and carries no information
    diagonal[diagonal == 0] = 1.0  # all evaluations have the same priors
    np.fill_diagonal(covariance, diagonal)
    return covariance

"""The terms of the loss model, and harm as a function of the levels.

`_model` explains the formula. Here p is the prior of a module at a level.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._problem import Levels, Problem

Array: TypeAlias = NDArray[np.float64]

SMALLEST = 0.05  # lower bound on a module's own harm relative to its prior, so that no module is free


class Terms(NamedTuple):
    """The terms p, p log p and √p of the model.

    Each is a table (modules, L) for all levels of a problem, or an array (n, modules) for n assignments.
    """

    prior: Array
    log_term: Array
    root: Array

    @classmethod
    def of(cls, problem: Problem) -> "Terms":
        """Tables of a problem. In log p, p is relative to the median of the module's useful levels."""
        prior, useful = problem.table.prior, problem.table.useful
        log_term = np.zeros_like(prior)
        for row, choices, out in zip(prior, useful & (prior > 0), log_term, strict=True):
            if choices.any():
                out[row > 0] = row[row > 0] * np.log(row[row > 0] / np.median(row[choices]))
        return cls(prior, log_term, np.sqrt(prior))

    def at(self, levels: Levels) -> "Terms":
        """Look up the terms of assignments (n, modules) in tables."""
        modules = np.arange(len(self.prior))
        return Terms(*(table[modules, levels] for table in self))

    def scaled_by(self, factors: Array) -> "Terms":
        """Terms of assignments after multiplying the priors by `factors` (modules,)."""
        return Terms(self.prior * factors, self.log_term * factors, self.root * np.sqrt(factors))

    def covariances(self, other: "Terms") -> Array:
        """Covariances (3, n, m) of the harm of two sets of assignments, due to θ, η and c of variance 1."""
        prior, log_term = self.prior @ other.prior.T, self.log_term @ other.log_term.T
        return np.stack([prior, log_term, ((self.root @ other.root.T) ** 2 - prior) / 2])

    def variances(self) -> Array:
        """Diagonal of `covariances` of these assignments with themselves, (3, n)."""
        prior, log_term = (self.prior**2).sum(axis=1), (self.log_term**2).sum(axis=1)
        return np.stack([prior, log_term, (self.prior.sum(axis=1) ** 2 - prior) / 2])


class Harm(NamedTuple):
    """A fully known harm: the model with a value for every unknown.

    Attributes:
        alone: float64 (modules, L), harm of each level of a module on its own.
        interaction: float64 (modules, modules), c: symmetric, with 0 on the diagonal.
    """

    alone: Array
    interaction: Array

    def total(self, tables: Terms, levels: Levels) -> Array:
        """Total harm (n,) of assignments (n, modules)."""
        root = tables.at(levels).root
        alone = self.alone[np.arange(len(self.alone)), levels].sum(axis=1)
        return np.asarray(alone + ((root @ self.interaction) * root).sum(axis=1) / 2)

    def weights(self, tables: Terms, levels: Levels) -> Array:
        """Weights (modules,) with which the weighted priors equal this harm at one assignment.

        They are scaled so that the largest is 1.
        """
        modules = np.arange(len(self.alone))
        # A module without harm at this assignment is judged at its most harmful level.
        judged = np.where(tables.prior[modules, levels] > 0, levels, tables.prior.argmax(axis=1))
        root = tables.root[modules, levels]
        prior = tables.prior[modules, judged]
        share = self.alone[modules, judged] + root * (self.interaction @ root) / 2
        weights = np.maximum(share / np.where(prior > 0, prior, 1.0), SMALLEST)
        return weights / float(weights.max())

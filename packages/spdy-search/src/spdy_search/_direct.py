"""The default method: evaluate the assignments that a learned model of the loss expects to be good.

The solution for the unweighted priors comes first. Every later step

1. fits the model of `_model` to the evaluations;
2. takes the expected harm and a few harms drawn from the posterior;
3. under each of these harms, descends from two starts: the best assignment so far, and a solution for the
   weights that the harm implies at that assignment;
4. proposes the assignment on these paths with the largest expected improvement, which is large if the
   expected loss is low or very uncertain.

A descent ends in a local minimum near its start. The first steps therefore explore instead: they propose an
assignment far from the best one. Every fourth of the later steps also explores, unless the evaluations show
that the priors are good.
"""

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ._archive import Archive
from ._descend import Neighbourhood
from ._greedy import repair
from ._harm import Terms
from ._methods import shifted_level
from ._model import GOOD_PRIORS, fit
from ._posterior import Posterior, Settings
from ._problem import Levels, Problem
from ._solve import solve, solve_batch

DRAWS = 2  # random harms per step
REMEMBERED = 300  # largest number of evaluations in a fit of the model; those with the lowest losses
RANDOM_CANDIDATES = 16
FIRST_EXPLORING_STEPS = 12
EXPLORE_EVERY = 4  # interval of the later exploring steps
EXPLORING_SPREAD = 0.7  # standard deviation of the logarithm of the random weights
DISTANT_SHARE = 1 / 4  # smallest share of the modules in which a distant assignment differs from the best
FARTHEST_SHIFT = 3


def direct(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Yield candidates, int64 (k, modules), most promising first.

    The caller records their losses in `archive` before it asks for more.
    """
    yield solve(problem)[None]
    if math.prod(map(len, problem.useful)) <= archive.evaluations:
        yield from _every_assignment(problem)
        return
    proposer = _Proposer(problem, archive, rng)
    for step in itertools.count(1):
        posterior = proposer.learn()
        candidates: list[Levels] = []
        if _explores(step, posterior.settings):
            candidates = _lowest_expected_loss_first(posterior, proposer.distant_solutions(posterior))
        if not candidates:
            found = proposer.descents(posterior) or proposer.random_variations(posterior)
            candidates = _largest_expected_improvement_first(posterior, found)
        yield np.array(candidates[: archive.batch] or [archive.best_levels])


class _Proposer:
    """Learns from the evaluations of an archive and proposes new assignments within budget."""

    def __init__(self, problem: Problem, archive: Archive, rng: np.random.Generator) -> None:
        self._problem = problem
        self._archive = archive
        self._rng = rng
        self._tables = Terms.of(problem)
        self._neighbourhood = Neighbourhood(problem, self._tables)
        self._settings = Settings()
        self._factors = np.ones(problem.modules)

    def learn(self) -> Posterior:
        """Fit the model to the evaluations, starting from the previous fit."""
        levels, losses = _training_data(self._archive)
        posterior = fit(self._tables, levels, losses, self._settings, self._factors)
        self._settings, self._factors = posterior.settings, posterior.next_factors()
        return posterior

    def distant_solutions(self, posterior: Posterior) -> list[Levels]:
        """Solutions for randomly disturbed weights that differ from the best assignment in many modules."""
        best = self._archive.best_levels
        modules = self._problem.modules
        weights = posterior.mean().weights(self._tables, best)
        factors = np.exp(EXPLORING_SPREAD * self._rng.standard_normal((RANDOM_CANDIDATES, modules)))
        solved = solve_batch(self._problem, weights * factors)
        return self._new(
            levels for levels in solved if np.count_nonzero(levels != best) >= DISTANT_SHARE * modules
        )

    def descents(self, posterior: Posterior) -> list[Levels]:
        """Assignments on the paths down from the best assignment and from the solutions for its weights."""
        best = self._archive.best_levels
        harms = [posterior.mean(), *(posterior.draw(self._rng) for _ in range(DRAWS))]
        solved = solve_batch(self._problem, np.array([harm.weights(self._tables, best) for harm in harms]))
        paths = [
            self._neighbourhood.descend(harm, start)
            for harm, solution in zip(harms, solved, strict=True)
            for start in (best, solution)
        ]
        return self._new([*solved, *itertools.chain(*paths)])

    def random_variations(self, posterior: Posterior) -> list[Levels]:
        """Random variations of the best assignment, for when all descents lead to known assignments."""
        best = self._archive.best_levels
        weights = posterior.mean().weights(self._tables, best)
        return self._new(
            _random_variation(self._problem, best, weights, self._rng) for _ in range(RANDOM_CANDIDATES)
        )

    def _new(self, candidates: Iterable[Levels]) -> list[Levels]:
        """The distinct candidates that are within budget and have not been evaluated."""
        distinct = {tuple(levels.tolist()): levels for levels in candidates}.values()
        return [
            levels for levels in distinct if not self._archive.knows(levels) and self._problem.fits(levels)
        ]


def _every_assignment(problem: Problem) -> Iterator[Levels]:
    """Yield every assignment of useful levels within budget, each as int64 (1, modules)."""
    for levels in itertools.product(*problem.useful):
        if problem.fits(levels):
            yield np.array(levels)[None]


def _explores(step: int, settings: Settings) -> bool:
    """Whether a step explores; steps count from 1."""
    regular = step % EXPLORE_EVERY == 0 and settings.spread > GOOD_PRIORS
    return step <= FIRST_EXPLORING_STEPS or regular


def _lowest_expected_loss_first(posterior: Posterior, candidates: list[Levels]) -> list[Levels]:
    if not candidates:
        return []
    order = posterior.expected_rise(np.array(candidates)).argsort(kind="stable")
    return [candidates[place] for place in order]


def _largest_expected_improvement_first(posterior: Posterior, candidates: list[Levels]) -> list[Levels]:
    if not candidates:
        return []
    improvement, rise = posterior.improvement(np.array(candidates))
    return [candidates[place] for place in np.lexsort((rise, -improvement))]


def _training_data(archive: Archive) -> tuple[Levels, NDArray[np.float64]]:
    """Levels (n, modules) and losses (n,) of the evaluations with the lowest losses, lowest first.

    If all evaluations have failed, the first one stands in, with a loss of 0.
    """
    done = [(evaluation.loss, evaluation.levels) for evaluation in archive.history]
    done = sorted(pair for pair in done if math.isfinite(pair[0]))[:REMEMBERED]
    done = done or [(0.0, archive.history[0].levels)]
    return np.array([levels for _, levels in done]), np.array([loss for loss, _ in done])


def _random_variation(
    problem: Problem, levels: Levels, weights: NDArray[np.float64], rng: np.random.Generator
) -> Levels:
    """Shift one or two modules of `levels` at random, and change other modules to stay within budget.

    Returns `levels` itself if that is impossible.
    """
    moved = rng.choice(problem.modules, size=min(int(rng.integers(1, 3)), problem.modules), replace=False)
    changed = levels.copy()
    for module in moved:
        shift = int(rng.integers(1, FARTHEST_SHIFT + 1)) * int(rng.choice([-1, 1]))
        changed[module] = shifted_level(problem, levels, int(module), shift)
    others = np.ones(problem.modules, dtype=bool)
    others[moved] = False
    repaired = repair(problem, weights, changed, others)
    return levels if repaired is None else repaired

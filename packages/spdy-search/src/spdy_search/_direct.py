"""The default method: moves around the best assignment, chosen by what the evaluations so far have taught.

Every step draws weights from the posterior of `_model`. Candidates are the solver's answers to such draws
(large moves) and the best assignment with one or two modules shifted by a few levels and the budget
repaired elsewhere (small ones). The candidate that is best under one more draw is evaluated: Thompson
sampling, so that modules about which little is known are tried.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ._archive import Archive
from ._greedy import repair
from ._model import fit
from ._problem import Levels, Problem
from ._solve import solve, solve_batch

RESOLVED = 16
SHIFTED = 16
FARTHEST_SHIFT = 3


def direct(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Yield candidates (k, modules), best first; the archive holds the results by the next step."""
    yield solve(problem)[None]
    if math.prod(map(len, problem.useful)) <= archive.evaluations:
        every = (np.array(levels) for levels in itertools.product(*problem.useful))
        yield from (levels[None] for levels in every if problem.fits(levels))
        return
    while True:
        weights, draws = _learned(problem, archive, rng)
        candidates = list(solve_batch(problem, draws[1:]))
        for _ in range(SHIFTED):
            candidates += _shift(problem, archive.best_levels, weights, rng)
        scores = problem.table.prior[np.arange(problem.modules), np.array(candidates)] @ draws[0]
        ranked = [candidates[place] for place in np.argsort(scores, kind="stable")]
        fresh = [levels for levels in ranked if not archive.knows(levels)]
        yield np.array(fresh[: archive.batch] or ranked)


def _learned(
    problem: Problem, archive: Archive, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The likeliest weights (modules,) after the evaluations so far, and draws (RESOLVED + 1, modules)."""
    done = [evaluation for evaluation in archive.history if math.isfinite(evaluation.loss)]
    levels = np.array([evaluation.levels for evaluation in done], dtype=np.int64)
    priors = problem.table.prior[np.arange(problem.modules), levels.reshape(-1, problem.modules)]
    posterior = fit(priors, np.array([evaluation.loss for evaluation in done]))
    return posterior.positive(posterior.mean), posterior.sample(rng, RESOLVED + 1)


def _shift(
    problem: Problem, levels: Levels, weights: NDArray[np.float64], rng: np.random.Generator
) -> list[Levels]:
    """`levels` with one or two modules shifted and the others repaired; empty if the budget is in the way."""
    moved = rng.choice(problem.modules, size=min(int(rng.integers(1, 3)), problem.modules), replace=False)
    changed = levels.copy()
    for module in moved:
        useful = problem.useful[module]
        shift = int(rng.integers(1, FARTHEST_SHIFT + 1)) * int(rng.choice([-1, 1]))
        place = int(np.searchsorted(useful, levels[module])) + shift
        changed[module] = useful[min(max(place, 0), len(useful) - 1)]
    others = np.ones(problem.modules, dtype=bool)
    others[moved] = False
    repaired = repair(problem, weights, changed, others)
    return [] if repaired is None else [repaired]

"""The default method: walk downhill under what the evaluations have taught, evaluate the most promising.

Every step takes the expected harm by `_model` and a few random truths that are as likely. Under each of
them one walk goes down from the best assignment, and one from the solver's answer to the weights that this
harm comes to there. Of all that lies on these ways the assignment with the largest expected improvement is
evaluated: a low expected loss, or one about which little is known.

Such walks end in the valley that they began in. So at first an assignment far from the best one is evaluated
instead, and now and then later, unless the evaluations say that the priors are good.
"""

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ._archive import Archive
from ._descend import Hillside
from ._greedy import repair
from ._model import GOOD_PRIORS, Settings, Terms, fit
from ._problem import Levels, Problem
from ._solve import solve, solve_batch

DRAWS = 2
REMEMBERED = 300  # evaluations to learn from, the best ones
STRAY = 16
FAR_FIRST, FAR_EVERY = 12, 4  # the first steps go far, and later every so many-th
FAR_SPREAD = 0.7  # of the random weights, by whose solutions far assignments are found
FAR_SHARE = 1 / 4  # of the modules that differ from the best assignment
FARTHEST_SHIFT = 3


def direct(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Yield candidates (k, modules), best first; the archive holds the results by the next step."""
    yield solve(problem)[None]
    if math.prod(map(len, problem.useful)) <= archive.evaluations:
        every = (np.array(levels) for levels in itertools.product(*problem.useful))
        yield from (levels[None] for levels in every if problem.fits(levels))
        return
    tables = Terms.of(problem)
    hillside = Hillside(problem, tables)
    settings, factors = Settings(), np.ones(problem.modules)
    for step in itertools.count(1):
        posterior = fit(tables, *_lowest(archive), settings, factors)
        settings, factors = posterior.settings, posterior.next_factors()
        best = archive.best_levels
        if step <= FAR_FIRST or (step % FAR_EVERY == 0 and settings.spread > GOOD_PRIORS):
            weights = posterior.mean().weights(tables, best)
            far = _fresh(problem, archive, _far_away(problem, best, weights, rng))
            if far:
                _, rise = posterior.improvement(np.array(far))
                yield np.array(far)[rise.argsort(kind="stable")[: archive.batch]]
                continue
        harms = [posterior.mean(), *(posterior.draw(rng) for _ in range(DRAWS))]
        solved = solve_batch(problem, np.array([harm.weights(tables, best) for harm in harms]))
        ways = [
            hillside.descend(harm, start)
            for harm, far in zip(harms, solved, strict=True)
            for start in (best, far)
        ]
        candidates = _fresh(problem, archive, [*solved, *itertools.chain(*ways)])
        if not candidates:  # all ways lead to what is known: look around it
            weights = harms[0].weights(tables, best)
            candidates = _fresh(
                problem, archive, [_shifted(problem, best, weights, rng) for _ in range(STRAY)]
            )
        if candidates:
            improvement, rise = posterior.improvement(np.array(candidates))
            order = np.lexsort((rise, -improvement))
            yield np.array(candidates)[order[: archive.batch]]
        else:
            yield best[None]


def _lowest(archive: Archive) -> tuple[Levels, NDArray[np.float64]]:
    """The evaluations to learn from, lowest loss first; while all have failed, the first as if it were 0."""
    done = [(evaluation.loss, evaluation.levels) for evaluation in archive.history]
    done = sorted(pair for pair in done if math.isfinite(pair[0]))[:REMEMBERED]
    done = done or [(0.0, archive.history[0].levels)]
    return np.array([levels for _, levels in done]), np.array([loss for loss, _ in done])


def _fresh(problem: Problem, archive: Archive, candidates: Iterable[Levels]) -> list[Levels]:
    """The distinct candidates that are within budget and have not been evaluated."""
    distinct = {tuple(levels.tolist()): levels for levels in candidates}.values()
    return [levels for levels in distinct if not archive.knows(levels) and problem.fits(levels)]


def _far_away(
    problem: Problem, levels: Levels, weights: NDArray[np.float64], rng: np.random.Generator
) -> list[Levels]:
    """Solutions for `weights` (modules,) times random factors that have little in common with `levels`."""
    factors = np.exp(FAR_SPREAD * rng.standard_normal((STRAY, problem.modules)))
    solved = solve_batch(problem, weights * factors)
    return [other for other in solved if np.count_nonzero(other != levels) >= FAR_SHARE * problem.modules]


def _shifted(
    problem: Problem, levels: Levels, weights: NDArray[np.float64], rng: np.random.Generator
) -> Levels:
    """`levels` with one or two modules shifted and the others repaired; unchanged if they cannot be."""
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
    return levels if repaired is None else repaired

"""The other methods: one evaluation of the prior or of uniform levels, the paper's search, and evolution."""

from collections.abc import Iterator

import numpy as np

from ._archive import Archive
from ._greedy import repair
from ._problem import Levels, Problem
from ._solve import solve, solve_batch

RANDOM_STARTS = 100
PAPER_STEPS = 1000
MUTATED = 0.1
OFFSPRING = 8
MOST_SWITCHES = 3


def prior(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """The solution for the priors as they are."""
    yield solve(problem)[None]


def uniform(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """All modules as far down their levels as is needed, in proportion to how many they have."""
    yield uniform_levels(problem)[None]


def uniform_levels(problem: Problem) -> Levels:
    """The smallest common share of the way from level 0 to the last that is within budget."""
    last = problem.level_counts - 1
    for share in np.linspace(0, 1, 1001):
        levels: Levels = np.rint(share * last).astype(np.int64)
        if problem.fits(levels):
            return levels
    # Costs that do not fall with the level: the nearest to the last ones, then.
    repaired = repair(problem, np.ones(problem.modules), last, np.ones(problem.modules, dtype=bool))
    return solve(problem) if repaired is None else repaired


def ziplm(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """The ZipLM paper's: random coefficients, then 1000 steps that redraw each with probability 0.1.

    Steps that repeat an assignment count as steps, as in the paper. Asked for more than 1000 evaluations, it
    makes as many steps.
    """
    starts = rng.random((max(1, min(RANDOM_STARTS, archive.evaluations // 10)), problem.modules))
    coefficients, smallest = starts[0], np.inf
    for start, levels in zip(starts, solve_batch(problem, starts), strict=True):
        yield levels[None]
        if archive.loss_of(levels) < smallest:
            coefficients, smallest = start, archive.loss_of(levels)
    for _ in range(max(PAPER_STEPS, archive.evaluations)):
        redrawn = rng.random(problem.modules) < MUTATED
        mutated = np.where(redrawn, rng.random(problem.modules), coefficients)
        levels = solve_batch(problem, mutated[None])[0]
        yield levels[None]
        if archive.loss_of(levels) <= smallest:
            coefficients, smallest = mutated, archive.loss_of(levels)


def evolution(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Level switches as in EvoPress and DarwinLM: some modules a level up, others down, from uniform on."""
    yield uniform_levels(problem)[None]
    while True:
        parent = archive.best_levels
        yield np.array([_switched(problem, parent, rng) for _ in range(OFFSPRING)])


def _switched(problem: Problem, parent: Levels, rng: np.random.Generator) -> Levels:
    """A child of `parent` by one to three switches, within budget; the parent itself if none is found."""
    child = parent.copy()
    switches = int(rng.integers(1, MOST_SWITCHES + 1, size=2).min())
    for module in rng.choice(problem.modules, size=min(switches, problem.modules), replace=False):
        child[module] = _neighbour(problem, child, int(module), -1)
    for module in rng.permutation(problem.modules):  # others pay for it, one level each
        if problem.fits(child):
            break
        if child[module] >= parent[module]:
            child[module] = _neighbour(problem, child, int(module), 1)
    if not problem.fits(child):
        return parent
    for module in rng.permutation(problem.modules)[:switches]:  # and what they paid too much is spent again
        larger = child.copy()
        larger[module] = _neighbour(problem, child, int(module), -1)
        if problem.fits(larger):
            child = larger
    return child


def _neighbour(problem: Problem, levels: Levels, module: int, step: int) -> int:
    useful = problem.useful[module]
    place = int(np.searchsorted(useful, levels[module])) + step
    return int(useful[min(max(place, 0), len(useful) - 1)])

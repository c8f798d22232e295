"""The other methods: one evaluation of the priors or of uniform levels, the paper's search, and evolution.

A method is a generator of candidates, int64 (k, modules). It can look up their losses in the archive when it
is asked for the next ones.
"""

from collections.abc import Iterator

import numpy as np

from ._archive import Archive
from ._greedy import repair
from ._problem import Levels, Problem
from ._solve import solve, solve_batch

RANDOM_STARTS = 100
PAPER_STEPS = 1000
MUTATION_RATE = 0.1
OFFSPRING = 8
MOST_SWITCHES = 3


def prior(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Propose the solution for the unweighted priors."""
    yield solve(problem)[None]


def uniform(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Propose uniform levels: every module at the same fraction of its range of levels."""
    yield uniform_levels(problem)[None]


def uniform_levels(problem: Problem) -> Levels:
    """Uniform levels at the smallest fraction that is within budget, int64 (modules,)."""
    last = problem.level_counts - 1
    for share in np.linspace(0, 1, 1001):
        levels: Levels = np.rint(share * last).astype(np.int64)
        if problem.fits(levels):
            return levels
    # Costs need not fall with the level, so not even the last levels may be within budget.
    repaired = repair(problem, np.ones(problem.modules), last, np.ones(problem.modules, dtype=bool))
    return solve(problem) if repaired is None else repaired


def ziplm(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Propose solutions for mutated random coefficients on the priors, as in the ZipLM paper.

    From the best of the random starts, 1000 steps redraw each coefficient with probability 0.1. A step that
    repeats a known assignment counts as a step, as in the paper. With more than 1000 evaluations there are as
    many steps as evaluations.
    """
    starts = rng.random((max(1, min(RANDOM_STARTS, archive.evaluations // 10)), problem.modules))
    coefficients, smallest = starts[0], np.inf
    for start, levels in zip(starts, solve_batch(problem, starts), strict=True):
        yield levels[None]
        if archive.loss_of(levels) < smallest:
            coefficients, smallest = start, archive.loss_of(levels)
    for _ in range(max(PAPER_STEPS, archive.evaluations)):
        redrawn = rng.random(problem.modules) < MUTATION_RATE
        mutated = np.where(redrawn, rng.random(problem.modules), coefficients)
        levels = solve_batch(problem, mutated[None])[0]
        yield levels[None]
        if archive.loss_of(levels) <= smallest:
            coefficients, smallest = mutated, archive.loss_of(levels)


def evolution(problem: Problem, archive: Archive, rng: np.random.Generator) -> Iterator[Levels]:
    """Propose level switches of the best assignment, as in EvoPress and DarwinLM.

    A switch moves some modules to the next larger size and others to the next smaller one. The search starts
    from uniform levels.
    """
    yield uniform_levels(problem)[None]
    while True:
        parent = archive.best_levels
        yield np.array([_switched(problem, parent, rng) for _ in range(OFFSPRING)])


def shifted_level(problem: Problem, levels: Levels, module: int, shift: int) -> int:
    """Level of `module` after moving it by `shift` useful levels, or to the first or last one."""
    useful = problem.useful[module]
    place = int(np.searchsorted(useful, levels[module])) + shift
    return int(useful[min(max(place, 0), len(useful) - 1)])


def _switched(problem: Problem, parent: Levels, rng: np.random.Generator) -> Levels:
    """A child of `parent` within budget, made by one to three switches; `parent` itself if none is found."""
    child = parent.copy()
    switches = int(rng.integers(1, MOST_SWITCHES + 1, size=2).min())
    for module in rng.choice(problem.modules, size=min(switches, problem.modules), replace=False):
        child[module] = shifted_level(problem, child, int(module), -1)
    _shrink_until_within_budget(problem, child, parent, rng)
    if not problem.fits(child):
        return parent
    for module in rng.permutation(problem.modules)[:switches]:  # spend what is left of the budget
        larger = child.copy()
        larger[module] = shifted_level(problem, child, int(module), -1)
        if problem.fits(larger):
            child = larger
    return child


def _shrink_until_within_budget(
    problem: Problem, child: Levels, parent: Levels, rng: np.random.Generator
) -> None:
    """Shrink modules by one size each, in random order and in place, until `child` is within budget.

    Modules that are larger than in `parent` are not shrunk.
    """
    for module in rng.permutation(problem.modules):
        if problem.fits(child):
            break
        if child[module] >= parent[module]:
            child[module] = shifted_level(problem, child, int(module), 1)

"""The slowest of many random problems for `solve_bounded`, and the gaps where it is not exact.

A part of bench/spdy.py.
"""

import time
from collections.abc import Callable

import numpy as np
from harness import print_table
from numpy.typing import NDArray
from spdy_search import Problem, solve_bounded

Array = NDArray[np.float64]


def sorted_rows(cost: Array, rng: np.random.Generator) -> Array:
    """Priors that have nothing to do with the costs, except that they rise while the costs fall."""
    return np.sort(rng.random(len(cost)))


def nearly_proportional(cost: Array, rng: np.random.Generator) -> Array:
    """Priors in proportion to the costs saved, but for a thousandth."""
    return np.asarray(np.maximum.accumulate(cost[0] - cost + 1e-3 * rng.random(len(cost))))


def with_step(cost: Array, rng: np.random.Generator) -> Array:
    """Priors in proportion to the costs saved, and a fixed prior for every module that is not whole."""
    return np.asarray(cost[0] - cost + 0.1 * (np.arange(len(cost)) > 0))


PRIORS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "random": sorted_rows,
    "nearly proportional": nearly_proportional,
    "with a step": with_step,
}
CASES = (
    ("random", 1, 96, 45, 150),
    ("random", 1, 300, 100, 10),
    ("random", 2, 96, 45, 50),
    ("random", 2, 300, 100, 5),
    ("nearly proportional", 1, 96, 45, 20),
    ("with a step", 1, 96, 45, 20),
    ("with a step", 1, 300, 100, 5),
)


def random_problem(kind: str, costs: int, modules: int, levels: int, seed: int) -> Problem:
    """Return a problem with budgets between a fifth and four fifths of what there is to spend."""
    rng = np.random.default_rng(seed)
    rows = {
        f"cost {number}": [np.sort(rng.random(levels))[::-1] for _ in range(modules)]
        for number in range(costs)
    }
    priors = [PRIORS[kind](row, rng) for row in rows["cost 0"]]
    share = rng.uniform(0.2, 0.8)
    budgets = {
        name: float(sum(row[-1] + share * (row[0] - row[-1]) for row in table))
        for name, table in rows.items()
    }
    return Problem(rows, priors, budgets)


def bench_tail() -> None:
    """Print median and largest CPU time, the number of exact solutions, and the largest gap."""
    rows = []
    for kind, costs, modules, levels, count in CASES:
        seconds, solutions = [], []
        for seed in range(count):
            problem = random_problem(kind, costs, modules, levels, seed)
            began = time.process_time()
            solutions.append(solve_bounded(problem))
            seconds.append(time.process_time() - began)
        rows.append(
            [
                f"{kind}, {costs} budget{'s' * (costs > 1)}, {modules} x {levels}",
                f"{np.median(seconds):.3f}",
                f"{max(seconds):.3f}",
                f"{sum(found.exact for found in solutions)} of {count}",
                f"{max(found.gap for found in solutions):.1e}",
            ]
        )
    print_table(
        "solve_bounded at its default effort, CPU seconds with the preparation of the problem",
        ["priors, budgets, modules x levels", "median", "worst", "exact", "worst gap"],
        rows,
    )

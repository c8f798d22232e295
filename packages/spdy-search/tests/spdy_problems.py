"""Problems, losses and reference solutions shared by the tests."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp
from spdy_search import Problem

Row = list[float]

METHODS = ["direct", "ziplm", "evolution", "prior", "uniform"]


def latency_problem(modules: int, speedup: float, seed: int) -> Problem:
    """Alternating attention and FFN modules of a transformer, with sensitivities from 0.01 to 1."""
    rng = np.random.default_rng(seed)
    heads = np.arange(12, -1, -1)
    widths = np.array([*(int(3072 * 0.9**i) for i in range(43)), 0])
    rows, priors = [], []
    for module in range(modules):
        sizes, unit, overhead = (heads, 1.0, 0.25) if module % 2 == 0 else (widths, 1.9, 0.12)
        rows.append(unit * np.where(sizes > 0, overhead + (1 - overhead) * sizes / sizes[0], 0.03))
        removed = 1 - sizes / sizes[0]
        bend, sensitivity = rng.uniform(1, 5), 10 ** rng.uniform(-2, 0)
        prior = 0.8 * sensitivity * np.expm1(bend * removed) / np.expm1(bend)
        prior[-1] = sensitivity  # removing the whole module does more harm than the curve predicts
        priors.append(prior)
    return Problem(rows, priors, sum(row[0] for row in rows) / speedup)


def two_budgets() -> Problem:
    """A small problem with the budgets "seconds" and "bytes"."""
    one = latency_problem(8, 2, seed=0)
    rows = one.costs["cost"]
    squares = [row**2 for row in rows]
    budgets = {"seconds": one.budget, "bytes": 0.3 * sum(row[0] for row in squares)}
    return Problem({"seconds": rows, "bytes": squares}, one.priors, budgets)


def hidden_loss(problem: Problem, seed: int, kind: str) -> Callable[[NDArray[np.int64]], float]:
    """A loss with hidden sensitivities, which the priors do not know.

    `kind` selects further differences, and each kind includes those before it: "weights" has none, "pairs"
    adds interactions between modules, "curved" other exponents of the priors, and "saturating" a logarithm of
    the total.
    """
    rng = np.random.default_rng([seed, 7])
    modules = problem.modules
    scale = max(float(row.max()) for row in problem.priors)
    power = np.ones(modules) if kind in ("weights", "pairs") else rng.uniform(0.7, 1.4, modules)
    harm = [
        sensitivity * scale * (row / scale) ** exponent
        for row, sensitivity, exponent in zip(
            problem.priors, np.exp(rng.normal(size=modules)), power, strict=True
        )
    ]
    first, second = rng.integers(0, modules, (2, 2 * modules))
    strength = rng.normal(0.15, 0.25, 2 * modules) * (kind != "weights")

    def loss(levels: NDArray[np.int64]) -> float:
        each = np.array([row[level] for row, level in zip(harm, levels, strict=True)])
        total = float(each.sum() + strength @ np.sqrt(each[first] * each[second]))
        return math.log1p(max(total, 0.0) * 100 / (modules * scale)) if kind == "saturating" else total

    return loss


def random_rows(rng: np.random.Generator) -> tuple[list[Row], list[Row], float]:
    """Costs, priors and a budget that can be met exactly, is out of reach, or is more than enough."""
    counts = rng.integers(1, 7, size=rng.integers(1, 8))
    kind = rng.integers(5)

    def values(count: int) -> NDArray[np.float64]:
        draws = {
            0: lambda: rng.integers(0, 5, count) * 0.1,  # sums that differ only in their last digits
            1: lambda: rng.uniform(0, 1, count),
            2: lambda: rng.integers(-3, 4, count) * 1.0,
            3: lambda: 10.0 ** rng.uniform(-9, 6, count),
            4: lambda: np.full(count, 0.1),
        }
        return np.asarray(draws[int(kind)]())

    costs = [values(count).tolist() for count in counts]
    priors = [
        (rng.integers(0, 4, count) * 1.0 if rng.random() < 0.3 else rng.uniform(-1, 2, count)).tolist()
        for count in counts
    ]
    chosen = [row[rng.integers(len(row))] for row in costs]
    share = rng.random()
    if share < 0.6:
        return costs, priors, math.fsum(chosen)
    low, high = sum(map(min, costs)), sum(map(max, costs))
    return costs, priors, float(rng.uniform(low - 0.1 * abs(high), high + 0.1 * abs(high) + 1e-9))


VALUES = st.one_of(
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1 / 3, 1e-9, -0.1]),
    st.floats(-1e6, 1e6, allow_subnormal=False),
)


@st.composite
def small_problems(
    draw: st.DrawFn, kinds: int = 1
) -> tuple[list[list[Row]], list[Row], list[float], list[float]]:
    """Costs (one table per kind), priors, budgets and weights, small enough for `brute_force`."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))

    def rows() -> list[Row]:
        return [draw(st.lists(VALUES, min_size=count, max_size=count)) for count in counts]

    costs = [rows() for _ in range(kinds)]
    priors = rows()
    budgets = []
    for cost in costs:
        exact = math.fsum(row[draw(st.integers(0, len(row) - 1))] for row in cost)
        budgets.append(draw(st.one_of(st.just(exact), st.just(math.nextafter(exact, -math.inf)), VALUES)))
    weights = draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=len(counts), max_size=len(counts))
    )
    return costs, priors, budgets, weights


def brute_force(
    costs: Sequence[Sequence[Row]], priors: Sequence[Row], budgets: Sequence[float], weights: Sequence[float]
) -> float | None:
    """Smallest weighted prior within all budgets, by enumeration; None if nothing is within them."""
    best = None
    for levels in itertools.product(*(range(len(row)) for row in priors)):
        if all(
            math.fsum(row[level] for row, level in zip(cost, levels, strict=True)) <= budget
            for cost, budget in zip(costs, budgets, strict=True)
        ):
            total = math.fsum(w * row[level] for w, row, level in zip(weights, priors, levels, strict=True))
            best = total if best is None else min(best, total)
    return best


def highs_optimum(problem: Problem, weights: NDArray[np.float64]) -> float:
    """Optimum of a problem with one cost, by HiGHS, scaled so that its tolerances are below 1e-9."""
    (rows,), (budget,) = problem.costs.values(), problem.budgets.values()
    objective = np.concatenate([w * row for w, row in zip(weights, problem.priors, strict=True)])
    module = np.repeat(np.arange(problem.modules), problem.level_counts)
    found = milp(
        objective * 1e5 / objective.max(),
        integrality=np.ones(len(objective)),
        bounds=(0, 1),
        constraints=[
            LinearConstraint((module == np.arange(problem.modules)[:, None]).astype(float), 1, 1),
            LinearConstraint(np.concatenate(rows)[None] * 1e4 / budget, -np.inf, 1e4),
        ],
        options={"mip_rel_gap": 0.0},
    )
    return float(objective @ np.rint(found.x))

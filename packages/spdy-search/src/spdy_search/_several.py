"""Several budgets at once: HiGHS for the optimum, one multiplier per budget for many weight vectors."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from ._greedy import repair
from ._problem import Levels, Problem

# HiGHS works to absolute tolerances of about 1e-6. With budgets and the widest prior at this size they are
# 1e-10.
HIGHS_SIZE = 1e4
MOST_CUTS = 50
MULTIPLIER_STEPS = 80


def solve_several(problem: Problem, weights: NDArray[np.float64]) -> Levels:
    """The optimum for `weights` (modules,), the widest weighted range 1, as int64 (modules,).

    An assignment that HiGHS takes for feasible and `math.fsum` does not is over budget by about 1e-10. It
    is cut off and the problem solved again; should that happen MOST_CUTS times, all that is within 1e-9 of
    a budget is cut off.
    """
    counts = [len(levels) for levels in problem.useful]
    if 0 in counts:
        raise _jointly_infeasible(problem)
    starts = np.cumsum([0, *counts])
    objective = np.concatenate(
        [
            weight * (row[levels] - row.min()) / problem.prior_scale
            for weight, row, levels in zip(weights, problem.priors, problem.useful, strict=True)
        ]
    )
    spent = np.stack(
        [
            np.concatenate([row[levels] for row, levels in zip(grid.costs, problem.useful, strict=True)])
            / max(grid.capacity, 1)
            for grid in problem.grids.values()
        ]
    )
    one_each = csr_array(
        (np.ones(starts[-1]), np.arange(starts[-1]), starts), shape=(len(counts), starts[-1])
    )
    cuts = csr_array((0, starts[-1]))
    for limit in [1.0] * MOST_CUTS + [1 - 1e-9]:
        constraints = [
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(spent * HIGHS_SIZE, -np.inf, limit * HIGHS_SIZE),
        ]
        if cuts.shape[0]:
            constraints.append(LinearConstraint(cuts, -np.inf, problem.modules - 1))
        found = milp(
            objective * HIGHS_SIZE,
            integrality=np.ones(starts[-1]),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            break
        chosen = np.array([found.x[a:b].argmax() for a, b in pairwise(starts)])
        levels = np.array([useful[place] for useful, place in zip(problem.useful, chosen, strict=True)])
        if problem.fits(levels):
            return levels
        cut = csr_array((np.ones(len(counts)), starts[:-1] + chosen, [0, len(counts)]), shape=(1, starts[-1]))
        cuts = vstack([cuts, cut], format="csr")
    raise _jointly_infeasible(problem)


def _jointly_infeasible(problem: Problem) -> Exception:
    budgets = ", ".join(f"{name} {budget:.6g}" for name, budget in problem.budgets.items())
    return problem.infeasible(
        f"no assignment keeps all budgets at once ({budgets}), though each can be kept alone; "
        "raise one of them"
    )


def relax_several(problem: Problem, weights: NDArray[np.float64]) -> Levels:
    """Good solutions, int64 (K, modules), for `weights` (K, modules), each row's widest weighted range 1.

    Multipliers grow for what is over budget and shrink for the rest; the best feasible solution on the way is
    filled up. Where none was feasible, the exact solver answers.
    """
    table = problem.table
    error = weights[:, :, None] * table.prior  # (K, modules, L)
    error[:, ~table.useful] = np.inf
    cost = np.where(table.useful, table.cost, 0.0)
    kinds, modules, _ = cost.shape
    log_multiplier = np.zeros((len(weights), kinds))
    best = np.full(len(weights), np.inf)
    levels = np.zeros(weights.shape, dtype=np.int64)
    for step in np.geomspace(2.0, 0.02, MULTIPLIER_STEPS):
        priced = error + np.tensordot(np.exp(log_multiplier), cost, axes=1)
        candidate = priced.argmin(axis=2)  # (K, modules)
        spent = cost[:, np.arange(modules), candidate].sum(axis=2).T  # (K, kinds)
        total = np.take_along_axis(error, candidate[:, :, None], axis=2).sum(axis=(1, 2))
        better = (spent <= 1).all(axis=1) & (total < best)
        best[better] = total[better]
        levels[better] = candidate[better]
        log_multiplier += step * np.clip(spent - 1, -1, 1)
    every_module = np.ones(modules, dtype=bool)
    for row, found in enumerate(np.isfinite(best)):
        filled = repair(problem, weights[row], levels[row], every_module) if found else None
        levels[row] = solve_several(problem, weights[row]) if filled is None else filled
    return levels

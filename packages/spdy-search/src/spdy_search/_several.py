"""Several budgets at once: HiGHS for the optimum, one multiplier per budget for many weight vectors."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from ._greedy import repair
from ._problem import InfeasibleBudget, Levels, Problem

# HiGHS works to absolute tolerances of about 1e-6. Budgets and the widest range of priors are scaled to
# this size, at which these tolerances amount to a relative error of 1e-10.
HIGHS_SIZE = 1e4
MOST_CUTS = 50
MULTIPLIER_STEPS = 80


class _Program(NamedTuple):
    """An integer program with one 0/1 variable for each useful level, module by module.

    Attributes:
        starts: int64 (modules + 1,), index of each module's first variable, and the number of variables.
        objective: float64 (variables,), weighted prior.
        spent: float64 (costs, variables), cost in units of the capacity.
        one_each: Sparse (modules, variables) matrix that sums the variables of each module.
    """

    starts: NDArray[np.int64]
    objective: NDArray[np.float64]
    spent: NDArray[np.float64]
    one_each: csr_array


def solve_several(problem: Problem, weights: NDArray[np.float64]) -> Levels:
    """Find the optimum under several budgets.

    HiGHS may return an assignment that exceeds a budget by about 1e-10 according to `math.fsum`. A cut then
    excludes that assignment, and the problem is solved again. After MOST_CUTS cuts, everything within 1e-9
    of a budget is excluded.

    Args:
        problem: The problem to solve.
        weights: float64 (modules,), scaled so that the widest weighted range of priors is 1.

    Returns:
        The optimal levels, int64 (modules,).

    Raises:
        InfeasibleBudget: If no assignment is within all budgets.
    """
    if any(len(levels) == 0 for levels in problem.useful):
        raise _jointly_infeasible(problem)
    program = _integer_program(problem, weights)
    variables = program.starts[-1]
    cuts = csr_array((0, variables))
    for limit in [1.0] * MOST_CUTS + [1 - 1e-9]:
        chosen = _solve_program(program, cuts, limit)
        if chosen is None:
            break
        levels = np.array([useful[place] for useful, place in zip(problem.useful, chosen, strict=True)])
        if problem.fits(levels):
            return levels
        cut = csr_array(
            (np.ones(len(chosen)), program.starts[:-1] + chosen, [0, len(chosen)]), shape=(1, variables)
        )
        cuts = vstack([cuts, cut], format="csr")
    raise _jointly_infeasible(problem)


def relax_several(problem: Problem, weights: NDArray[np.float64]) -> Levels:
    """Find good solutions under several budgets for many weight vectors.

    The multiplier of a cost grows while the cost is over its budget and shrinks otherwise. The best feasible
    solution found on the way is improved until the budgets are used up. If none is feasible, the exact solver
    takes over.

    Args:
        problem: The problem to solve.
        weights: float64 (K, modules), each row scaled so that its widest weighted range of priors is 1.

    Returns:
        One assignment per row of `weights`, int64 (K, modules).
    """
    levels, found = _best_priced_levels(problem, weights)
    every_module = np.ones(problem.modules, dtype=bool)
    for row in range(len(weights)):
        filled = repair(problem, weights[row], levels[row], every_module) if found[row] else None
        levels[row] = solve_several(problem, weights[row]) if filled is None else filled
    return levels


def _integer_program(problem: Problem, weights: NDArray[np.float64]) -> _Program:
    counts = [len(levels) for levels in problem.useful]
    starts = np.cumsum([0, *counts])
    objective = [
        weight * (row[levels] - row.min()) / problem.prior_scale
        for weight, row, levels in zip(weights, problem.priors, problem.useful, strict=True)
    ]
    spent = [
        np.concatenate([row[levels] for row, levels in zip(grid.costs, problem.useful, strict=True)])
        / max(grid.capacity, 1)
        for grid in problem.grids.values()
    ]
    one_each = csr_array(
        (np.ones(starts[-1]), np.arange(starts[-1]), starts), shape=(len(counts), starts[-1])
    )
    return _Program(starts, np.concatenate(objective), np.stack(spent), one_each)


def _solve_program(program: _Program, cuts: csr_array, limit: float) -> NDArray[np.int64] | None:
    """The index of the chosen useful level of each module, int64 (modules,), or None if infeasible.

    Args:
        program: The integer program.
        cuts: Sparse (cuts, variables); each row marks an excluded assignment.
        limit: Largest total of each cost, in units of its capacity.
    """
    modules, variables = program.one_each.shape
    constraints = [
        LinearConstraint(program.one_each, 1, 1),
        LinearConstraint(program.spent * HIGHS_SIZE, -np.inf, limit * HIGHS_SIZE),
    ]
    if cuts.shape[0]:
        constraints.append(LinearConstraint(cuts, -np.inf, modules - 1))
    found = milp(
        program.objective * HIGHS_SIZE,
        integrality=np.ones(variables),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return np.array([found.x[a:b].argmax() for a, b in pairwise(program.starts)])


def _jointly_infeasible(problem: Problem) -> InfeasibleBudget:
    budgets = ", ".join(f"{name} {budget:.6g}" for name, budget in problem.budgets.items())
    return problem.infeasible(
        f"no assignment is within all budgets at once ({budgets}), though each can be met alone; "
        "raise one of them"
    )


def _best_priced_levels(problem: Problem, weights: NDArray[np.float64]) -> tuple[Levels, NDArray[np.bool_]]:
    """Adjust the multipliers for a fixed number of steps.

    Returns:
        The best feasible levels met, int64 (K, modules), and whether there were any, bool (K,).
    """
    table = problem.table
    prior = weights[:, :, None] * table.prior  # (K, modules, L)
    prior[:, ~table.useful] = np.inf
    cost = np.where(table.useful, table.cost, 0.0)
    kinds, modules, _ = cost.shape
    log_multiplier = np.zeros((len(weights), kinds))
    best = np.full(len(weights), np.inf)
    levels = np.zeros(weights.shape, dtype=np.int64)
    for step in np.geomspace(2.0, 0.02, MULTIPLIER_STEPS):
        priced = prior + np.tensordot(np.exp(log_multiplier), cost, axes=1)
        candidate = priced.argmin(axis=2)  # (K, modules)
        spent = cost[:, np.arange(modules), candidate].sum(axis=2).T  # (K, kinds)
        total = np.take_along_axis(prior, candidate[:, :, None], axis=2).sum(axis=(1, 2))
        better = (spent <= 1).all(axis=1) & (total < best)
        best[better] = total[better]
        levels[better] = candidate[better]
        log_multiplier += step * np.clip(spent - 1, -1, 1)
    return levels, np.isfinite(best)

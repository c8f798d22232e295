"""The optimum under several budgets, or a solution with a proven gap: the core of the problem first.

As in `_exact`, every cost has a price: its dual value in the linear relaxation. An assignment whose prior
exceeds the lower bound by at most g uses only levels whose excess is at most g. The assignments of this core
are enumerated, and g grows until the best prior is within g of the bound. If there are too many, HiGHS solves
the core of the best solution found, with a limit on its search tree.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from ._enumerate import Candidates, best_assignment
from ._problem import InfeasibleBudget, Levels, Problem
from ._several import relax_several

# HiGHS works to absolute tolerances of about 1e-6. Budgets and the widest range of priors are scaled to
# this size, at which these tolerances amount to a relative error of 1e-10.
HIGHS_SIZE = 1e4
ROUNDING = 1e-9  # of a total prior, relative to the widest range of priors
MOST_CUTS = 50
NODE_EFFORT = 3000  # partial assignments that a node of HiGHS is worth
FIRST_LEVELS = 32  # levels of the first core beyond one for each module
GROWTH = 2.0  # of g between two cores


class _Program(NamedTuple):
    """An integer program with one 0/1 variable for each useful level, module by module.

    Attributes:
        module: int64 (variables,), module of each variable.
        level: int64 (variables,), level of each variable.
        objective: float64 (variables,), weighted prior.
        spent: float64 (costs, variables), cost in units of the capacity.
    """

    module: NDArray[np.int64]
    level: NDArray[np.int64]
    objective: NDArray[np.float64]
    spent: NDArray[np.float64]

    def part(self, kept: NDArray[np.int64]) -> "_Program":
        """The program with only some of its variables."""
        return _Program(self.module[kept], self.level[kept], self.objective[kept], self.spent[:, kept])

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index of each module's first variable, and the number of variables, int64 (modules + 1,)."""
        return np.append(np.searchsorted(self.module, np.arange(self.module[-1] + 1)), len(self.module))

    @property
    def one_each(self) -> csr_array:
        """Sparse (modules, variables) matrix that sums the variables of each module."""
        starts, variables = self.starts, len(self.module)
        return csr_array((np.ones(variables), np.arange(variables), starts), (len(starts) - 1, variables))


class _Core(NamedTuple):
    """Result of solving a core.

    Attributes:
        levels: int64 (modules,), or None if no assignment of the core within budget was found.
        bound: Lower bound on the weighted prior of the core's assignments.
        nodes: Nodes used.
        complete: Whether `levels` are the core's optimum, or it has no assignment within budget.
    """

    levels: Levels | None
    bound: float
    nodes: int
    complete: bool


class _Relaxation(NamedTuple):
    """The linear relaxation of a program.

    Attributes:
        bound: Lower bound on the optimum.
        excess: float64 (variables,), what each variable adds to its module's floor.
        prices: float64 (costs,), price of the whole capacity.
    """

    bound: float
    excess: NDArray[np.float64]
    prices: NDArray[np.float64]


class _Best:
    """The best assignment so far, and how far its weighted prior is above the lower bound."""

    def __init__(self, problem: Problem, weights: NDArray[np.float64], bound: float) -> None:
        self._prior, self._bound = weights[:, None] * problem.table.prior, bound
        self.levels: Levels | None = None
        self.gap = math.inf

    def offer(self, levels: Levels) -> None:
        """Keep `levels` (modules,) if they are better."""
        prior = float(self._prior[np.arange(len(levels)), levels].sum())
        gap = max(prior - self._bound, 0.0) + ROUNDING
        if gap < self.gap:
            self.levels, self.gap = levels, gap


def solve_several(problem: Problem, weights: NDArray[np.float64], effort: int) -> tuple[Levels, float, bool]:
    """Find the optimum under several budgets, or a solution with a proven gap.

    Args:
        problem: The problem to solve.
        weights: float64 (modules,), scaled so that the widest weighted range of priors is 1.
        effort: Partial assignments that may be looked at; a node of HiGHS counts as NODE_EFFORT. More are
            used only to find any assignment within budget at all.

    Returns:
        The levels, int64 (modules,), how far their weighted prior is above its lower bound, and whether they
        are optimal.

    Raises:
        InfeasibleBudget: If no assignment is within all budgets.
    """
    if any(len(levels) == 0 for levels in problem.useful):
        raise _jointly_infeasible(problem)
    program = _integer_program(problem, weights)
    relaxed = _relaxation(program)
    if relaxed is None:
        raise _jointly_infeasible(problem)
    best = _Best(problem, weights, relaxed.bound)
    levels, known = relax_several(problem, weights[None])
    if known[0]:
        best.offer(levels[0])
    proven, exact = _enumerate_cores(problem, program, relaxed, effort, best)
    if not exact:
        core = program.part(np.flatnonzero(relaxed.excess <= best.gap))
        nodes = None if best.levels is None else max(effort // NODE_EFFORT, 1)
        found = _solve_core(problem, core, nodes)
        if found.levels is not None:
            best.offer(found.levels)
        exact, proven = found.complete, max(proven, min(found.bound - relaxed.bound, best.gap))
    if best.levels is None:
        raise _jointly_infeasible(problem)
    return best.levels, max(best.gap - proven, 0.0), exact


def _enumerate_cores(
    problem: Problem, program: _Program, relaxed: _Relaxation, effort: int, best: _Best
) -> tuple[float, bool]:
    """Offer `best` the best assignments of growing cores.

    Returns:
        How far the optimum is known to be above the lower bound, and whether `best` is the optimum.
    """
    grids = tuple(problem.grids.values())
    capacities = np.array([grid.capacity for grid in grids])
    units = np.array(
        [
            np.concatenate([row[useful] for row, useful in zip(grid.costs, problem.useful, strict=True)])
            for grid in grids
        ]
    )
    candidates = Candidates(program.starts, units, relaxed.excess)
    prices = relaxed.prices / np.maximum(capacities, 1)
    core, proven = _first_core(program, relaxed.excess), 0.0
    # No assignment has a larger excess, whatever the order in which it is added up.
    largest = float(np.maximum.reduceat(relaxed.excess, program.starts[:-1]).sum()) + ROUNDING
    while True:
        core = min(core, best.gap)
        found = best_assignment(candidates, capacities, prices, core, effort)
        if found.chosen is not None:
            levels = program.level[found.chosen]
            if not problem.fits(levels):  # over budget by less than a unit of the grid: leave it to HiGHS
                return proven, False
            best.offer(levels)
        if not found.complete:
            return proven, False
        if best.gap <= core or core >= largest:
            return core, True
        effort -= found.effort
        proven, core = core, core * GROWTH


def _integer_program(problem: Problem, weights: NDArray[np.float64]) -> _Program:
    module = np.repeat(np.arange(problem.modules), list(map(len, problem.useful)))
    level = np.concatenate(problem.useful)
    return _Program(
        module,
        level,
        objective=weights[module] * problem.table.prior[module, level],
        spent=problem.table.cost[:, module, level],
    )


def _relaxation(program: _Program) -> _Relaxation | None:
    """The linear relaxation; None if even fractions of levels cannot be within all budgets."""
    found = linprog(
        program.objective * HIGHS_SIZE,
        A_ub=program.spent * HIGHS_SIZE,
        b_ub=np.full(len(program.spent), HIGHS_SIZE),
        A_eq=program.one_each,
        b_eq=np.ones(len(program.starts) - 1),
    )
    if found.status == 2:
        return None
    # Any prices give a valid bound, so that neither tolerances nor a failure of HiGHS can make it wrong.
    failed = found.ineqlin is None or found.ineqlin.marginals is None
    price = np.zeros(len(program.spent)) if failed else np.maximum(-found.ineqlin.marginals, 0.0)
    priced = program.objective + price @ program.spent
    floors = np.minimum.reduceat(priced, program.starts[:-1])
    return _Relaxation(float(floors.sum() - price.sum()), priced - floors[program.module], price)


def _first_core(program: _Program, excess: NDArray[np.float64]) -> float:
    """A first g, with FIRST_LEVELS levels in its core beyond one for each module."""
    count = len(program.starts) - 1 + FIRST_LEVELS
    return max(float(np.sort(excess)[min(count, len(excess) - 1)]), ROUNDING)


def _solve_core(problem: Problem, core: _Program, nodes: int | None) -> _Core:
    """Solve a part of the program.

    HiGHS may return an assignment that exceeds a budget by about 1e-10 according to `math.fsum`. A cut then
    excludes that assignment, and the core is solved again. After MOST_CUTS cuts, everything within 1e-9 of a
    budget is excluded.

    Args:
        problem: The problem.
        core: The variables to choose from.
        nodes: Largest number of nodes of the search tree for each call of HiGHS; None for no limit.
    """
    variables = len(core.module)
    cuts = csr_array((0, variables))
    used = 0
    for limit in [1.0] * MOST_CUTS + [1 - 1e-9]:
        found = _highs(core, cuts, limit, nodes)
        used += int(found.mip_node_count or 0)
        complete = found.status in (0, 2)
        bound = float(found.mip_dual_bound) / HIGHS_SIZE if found.mip_dual_bound is not None else -math.inf
        if found.x is None:
            return _Core(None, bound, used, complete)
        chosen = np.array([a + found.x[a:b].argmax() for a, b in pairwise(core.starts)])
        levels = core.level[chosen]
        if problem.fits(levels):
            return _Core(levels, bound, used, complete)
        cut = csr_array((np.ones(len(chosen)), chosen, [0, len(chosen)]), shape=(1, variables))
        cuts = vstack([cuts, cut], format="csr")
    return _Core(None, bound, used, complete=True)


def _highs(core: _Program, cuts: csr_array, limit: float, nodes: int | None) -> Any:
    """Solve a program by `milp`, whose result it returns.

    Args:
        core: The program.
        cuts: Sparse (cuts, variables); each row marks an excluded assignment.
        limit: Largest total of each cost, in units of its capacity.
        nodes: Largest number of nodes of the search tree; None for no limit.
    """
    one_each = core.one_each
    constraints = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(core.spent * HIGHS_SIZE, -np.inf, limit * HIGHS_SIZE),
    ]
    if cuts.shape[0]:
        constraints.append(LinearConstraint(cuts, -np.inf, one_each.shape[0] - 1))
    return milp(
        core.objective * HIGHS_SIZE,
        integrality=np.ones(len(core.module)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": 0.0} | ({} if nodes is None else {"node_limit": nodes}),
    )


def _jointly_infeasible(problem: Problem) -> InfeasibleBudget:
    budgets = ", ".join(f"{name} {budget:.6g}" for name, budget in problem.budgets.items())
    return problem.infeasible(
        f"no assignment is within all budgets at once ({budgets}), though each can be met alone; "
        "raise one of them"
    )

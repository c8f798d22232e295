"""Choose one level per module under a budget: exact solvers and a search over error priors."""

from ._problem import InfeasibleBudget, Problem
from ._solve import solve, solve_batch

__all__ = ["InfeasibleBudget", "Problem", "solve", "solve_batch"]

"""Choose one level per module under a budget: exact solvers and a search with a real loss."""

from importlib.metadata import version

from ._checkpoint import CheckpointError
from ._evaluation import Evaluation, Progress
from ._fit import FitResult, FitRound, fit_budget
from ._problem import InfeasibleBudget, Problem
from ._search import SearchResult, search
from ._solve import Solution, solve, solve_batch, solve_bounded
from ._totals import Measurement

__version__ = version("spdy-search")

__all__ = [
    "CheckpointError",
    "Evaluation",
    "FitResult",
    "FitRound",
    "InfeasibleBudget",
    "Measurement",
    "Problem",
    "Progress",
    "SearchResult",
    "Solution",
    "fit_budget",
    "search",
    "solve",
    "solve_batch",
    "solve_bounded",
]

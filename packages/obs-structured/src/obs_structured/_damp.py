"""Second step of `prune`: solve the problem with enough damping for the Hessian to be factorised."""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from obs_structured._costs import NonPositivePivot
from obs_structured._normalise import LARGEST_DAMPING, Problem
from obs_structured._solve import Solution, solve
from obs_structured._trace import columns_of

logger = logging.getLogger("obs_structured")

LEAST_RAISED = 1e-8  # a raised damping is at least this, relative to the mean diagonal


class Damped(NamedTuple):
    """Solution for the live groups, with the damping that was used."""

    solution: Solution
    relative: float  # damping relative to the mean diagonal of the live groups' hessian
    absolute: float  # λ, added to that diagonal


def damp(problem: Problem, progress: Callable[[int, int], None] | None) -> Damped:
    """Solve the problem for its live groups, raising the damping until the Hessian can be factorised.

    Args:
        problem: result of `normalise`.
        progress: called from time to time as progress(groups removed, groups in total).

    Raises:
        ValueError: if the Hessian cannot be factorised with any damping up to 1e6 times its mean diagonal.
    """
    free, groups = len(problem.free_groups), len(problem.free_groups) + len(problem.live_groups)
    columns = columns_of(problem.live_groups, problem.group_size)
    hessian = problem.hessian[columns][:, columns] if free else problem.hessian  # (live, live)
    report = None if progress is None else (lambda removed: progress(removed + free, groups))
    damped = _solve_raising_damping(problem, problem.scored[:, columns], hessian, report)
    # Only the elimination of "obs" reports progress by itself.
    if progress is not None and (problem.method != "obs" or not len(problem.live_groups)):
        progress(groups, groups)
    return damped


def _solve_raising_damping(
    problem: Problem,
    scored: torch.Tensor,
    hessian: torch.Tensor,
    report: Callable[[int], None] | None,
) -> Damped:
    """Solve for `scored` (r', live) and `hessian` (live, live), with ten times the damping at each retry."""
    mean_diagonal = float(hessian.diagonal().sum()) / max(1, len(hessian)) or 1.0
    relative = problem.damping
    while True:
        absolute = relative * mean_diagonal
        try:
            solution = solve(
                scored, hessian, problem.group_size, absolute, problem.method, problem.update, report
            )
            return Damped(solution, relative, absolute)
        except NonPositivePivot:
            relative = max(10 * relative, LEAST_RAISED)
            if relative > LARGEST_DAMPING:
                raise ValueError(
                    f"hessian cannot be factorised with any damping up to {LARGEST_DAMPING:g} times its "
                    "mean diagonal"
                ) from None
            logger.warning(
                "the Hessian cannot be factorised: damping raised to %g times its mean diagonal", relative
            )

"""Third step of `prune`: arrange the solution in reverse order of removal and make the trace."""

from typing import NamedTuple

import torch

from obs_structured._damp import Damped
from obs_structured._normalise import Problem
from obs_structured._solve import Solution
from obs_structured._trace import Trace, columns_of


class _Arranged(NamedTuple):
    """Tensors of a trace, columns in reverse order of removal; see `Trace` for the symbols."""

    components: torch.Tensor  # (r, d): Y with update, W without
    matrix: torch.Tensor  # (d, d): K with update, H without
    mean: torch.Tensor | None  # (d,): K μ with update, μ without
    energy: float  # tr(W H Wᵀ) for W in units of `Problem.weight_unit`, H centred if there is a mean
    rounding: float  # bound of the rounding error in `energy`


def assemble(problem: Problem, damped: Damped) -> Trace:
    """Make the trace of a solved problem.

    Raises:
        ValueError: if the output of the layer is zero on its inputs, or overflows.
    """
    order = torch.cat([problem.free_groups, problem.live_groups[damped.solution.order]])
    positions = columns_of(order.flip(0), problem.group_size)  # (d,): column at each position
    W = problem.weight[:, positions]
    mean = None if problem.mean is None else problem.mean[positions]
    K = damped.solution.inverse_factor
    if K is None:
        arranged = _without_update(W, problem.hessian[positions][:, positions], mean, problem.weight_unit)
    else:
        arranged = _with_update(problem, damped, W, K, mean)
    _check_output(arranged, W, mean, problem.weight_unit, problem.scale)
    return Trace(
        order,
        arranged.components,
        arranged.matrix,
        group_size=problem.group_size,
        updated=problem.update,
        damping=damped.relative,
        absolute_damping=damped.absolute,
        free_columns=len(problem.free_groups) * problem.group_size,
        mean=arranged.mean,
        dtype=problem.dtype,
        scale=problem.scale,
    )


def _without_update(W: torch.Tensor, H: torch.Tensor, mean: torch.Tensor | None, unit: float) -> _Arranged:
    scaled = W / unit
    energy = float((scaled @ H * scaled).sum())
    return _Arranged(W, H, mean, energy, rounding=0.0)


def _with_update(
    problem: Problem, damped: Damped, W: torch.Tensor, K: torch.Tensor, mean: torch.Tensor | None
) -> _Arranged:
    live = len(K)  # the live columns come first; the free ones are not part of K
    Y = _live_components(problem, damped.solution, W[:, :live], K)
    matrix = _with_identity(K, len(problem.hessian))
    damped_energy = _energy(Y, problem.weight_unit)  # tr(W (H + λI) Wᵀ)
    return _Arranged(
        components=torch.cat([Y, W[:, live:]], dim=1),
        matrix=matrix,
        mean=None if mean is None else matrix @ mean,
        energy=damped_energy - damped.absolute * _energy(W[:, :live], problem.weight_unit),
        rounding=1e-13 * damped_energy,
    )


def _energy(matrix: torch.Tensor, unit: float) -> float:
    """Return ‖M / unit‖²."""
    return float(torch.linalg.vector_norm(matrix / unit)) ** 2


def _live_components(problem: Problem, solution: Solution, W: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    """Return Y = W K⁻¹ (r, live) for the live columns of W (r, live)."""
    if solution.components is not None and not problem.has_metric:
        return solution.components * problem.scored_unit
    Y: torch.Tensor = torch.linalg.solve_triangular(K, W, upper=False, left=False)
    return Y


def _with_identity(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """Return the matrix, extended to (size, size) with ones on the diagonal if it is smaller."""
    if len(matrix) == size:
        return matrix
    extended = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    extended[: len(matrix), : len(matrix)] = matrix
    return extended


def _check_output(
    arranged: _Arranged, W: torch.Tensor, mean: torch.Tensor | None, unit: float, scale: float
) -> None:
    """Raise ValueError unless the energy of the output is a valid divisor for relative errors."""
    energy = arranged.energy
    if mean is not None:
        if not (W @ mean).isfinite().all():
            raise ValueError("weight @ mean overflows, but must be finite; divide the weight by a constant")
        energy += 2 * float((W / unit @ mean).square().sum()) / scale
    if not arranged.rounding < energy < torch.inf:
        raise ValueError(
            f"the energy tr(W H W.T) of weight @ inputs is {energy * unit * unit * scale:.3g}, but must be "
            "finite and larger than its rounding error"
        )

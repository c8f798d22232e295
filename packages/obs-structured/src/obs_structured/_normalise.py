"""First step of `prune`: check the arguments and bring them into one form."""

import math
from dataclasses import dataclass

import torch

from obs_structured import _checks
from obs_structured._factor import cholesky_
from obs_structured._solve import METHODS

# Default relative damping: with enough inputs, and with fewer than two inputs per column.
DAMPING, DAMPING_FEW = 1e-2, 1e-1
LARGEST_DAMPING = 1e6  # with a damping of 10^k, the errors lose about k digits to cancellation


@dataclass(frozen=True, eq=False)
class Problem:
    """Checked arguments of `prune` for d columns in groups of g; all tensors are float64 on one device.

    A column is free if its inputs are constant (always zero, if there is no mean), so that its removal costs
    nothing. A group is free if all its columns are.
    """

    weight: torch.Tensor  # W (r, d)
    weight_unit: float  # a power of two close to the largest |W|
    dtype: torch.dtype  # dtype of the results
    scored: torch.Tensor  # (r', d): R W / scored_unit, by which groups are chosen; RᵀR is the metric
    scored_unit: float  # largest |R W|
    has_metric: bool  # without a metric, R is the identity; with one, W is in units of `weight_unit`
    hessian: torch.Tensor  # H / scale (d, d), centred if there is a mean
    scale: float  # mean diagonal of the hessian before centring
    mean: torch.Tensor | None  # μ (d,)
    group_size: int
    free_groups: torch.Tensor  # (f,) int64, removed before all others; empty for the baselines
    live_groups: torch.Tensor  # (n,) int64, all others
    damping: float  # relative to the mean diagonal of the live groups' hessian
    method: str
    update: bool


def normalise(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int,
    mean: torch.Tensor | None,
    metric: torch.Tensor | None,
    damping: float | None,
    count: int | None,
    method: str,
    *,
    update: bool,
) -> Problem:
    """Check the arguments of `prune`, then convert, scale and centre them.

    Raises:
        ValueError: if an argument is invalid. An all-zero output is detected later, by `assemble`.
    """
    _check_arguments(weight, hessian, group_size, mean, metric, damping, count, method)
    # mps does not support float64.
    device = torch.device("cpu") if weight.device.type == "mps" else weight.device
    W = weight.detach().to(device, torch.float64)  # (r, d)
    H = _checks.symmetrised("hessian", hessian.detach().to(device, torch.float64))  # (d, d), a copy
    # H and the scored weights are scaled to values around one: their squares must not leave the float range.
    scale = float(H.diagonal().mean().abs()) or 1.0
    H /= scale
    weight_unit = _checks.power_of_two(W)
    scored = W if metric is None else _under_metric(metric, W / weight_unit)
    scored_unit = float(scored.abs().max())
    largest = _largest_eigenvalue_bound(H)
    if mean is None:
        free_columns = H.diagonal() <= 0  # (d,) bool
    else:
        mean = mean.detach().to(device, torch.float64)
        free_columns = _centre_(H, mean, scale)
        if not H.isfinite().all():
            raise ValueError(
                f"hessian - 2 mean mean.T overflows: the largest absolute value of mean is "
                f"{float(mean.abs().max()):.3g}, but mean² can be at most half the diagonal of hessian"
            )
    _check_semidefinite("hessian" if mean is None else "hessian - 2 mean mean.T", H, largest)
    # "obs" removes the free groups first, since the Hessian may be invertible without them.
    free = free_columns.view(-1, group_size).all(1) & (method == "obs")  # (groups,) bool
    return Problem(
        weight=W,
        weight_unit=weight_unit,
        dtype=weight.dtype,
        scored=scored / scored_unit,
        scored_unit=scored_unit,
        has_metric=metric is not None,
        hessian=H,
        scale=scale,
        mean=mean,
        group_size=group_size,
        free_groups=free.nonzero()[:, 0],
        live_groups=(~free).nonzero()[:, 0],
        damping=_default_damping(len(H), count) if damping is None else damping,
        method=method,
        update=update,
    )


def _check_arguments(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int,
    mean: torch.Tensor | None,
    metric: torch.Tensor | None,
    damping: float | None,
    count: int | None,
    method: str,
) -> None:
    """Raise ValueError for arguments that can be refused without computing anything."""
    _check_weight(weight)
    rows, columns = weight.shape
    _checks.finite_tensor("hessian", hessian, (columns, columns))
    _checks.nonzero("hessian", hessian)
    _checks.moderate("hessian", hessian)
    if not isinstance(group_size, int) or group_size < 1 or columns % group_size:
        raise ValueError(
            f"group_size is {group_size}, but must be a positive divisor of the {columns} columns"
        )
    if mean is not None:
        _checks.finite_tensor("mean", mean, (columns,))
    if metric is not None:
        _checks.finite_tensor("metric", metric, (rows, rows), (rows,))
        _checks.nonzero("metric", metric)
        _checks.moderate("metric", metric)
    if damping is not None and not (_checks.is_real(damping) and 0 <= damping <= LARGEST_DAMPING):
        raise ValueError(
            f"damping is {_checks.shortened(damping)}, but must be between 0 and {LARGEST_DAMPING:g}; "
            "it is relative to the mean diagonal of the hessian"
        )
    if count is not None and not (_checks.is_real(count) and count >= 1):
        raise ValueError(f"count is {_checks.shortened(count)}, but must be at least 1")
    _checks.one_of("method", method, METHODS)


def _check_weight(weight: torch.Tensor) -> None:
    if isinstance(weight, torch.Tensor) and weight.ndim > 2:
        size = math.prod(weight.shape[2:])
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}, but must have 2 dimensions; for a convolution, use "
            f"prune(weight.flatten(1), hessian_of_unfolded_inputs, group_size={size}), where the group size "
            "is kernel_h * kernel_w (see the README)"
        )
    _checks.finite_tensor("weight", weight, 2)
    _checks.nonzero("weight", weight)
    _checks.moderate("weight", weight)


def _default_damping(columns: int, count: int | None) -> float:
    return DAMPING_FEW if count is not None and count < 2 * columns else DAMPING


def _under_metric(metric: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """Return R W (r', d) with RᵀR = `metric`, which is a matrix (r, r) or its diagonal (r,).

    Raises:
        ValueError: if the metric is not symmetric positive semidefinite.
    """
    metric = metric.detach().to(W)
    if metric.ndim == 1:
        _checks.semidefinite_spectrum("metric", float(metric.min()), float(metric.max()))
        return metric.clamp(min=0).sqrt()[:, None] * W
    symmetric = _checks.symmetrised("metric", metric)
    factor, singular = torch.linalg.cholesky_ex(symmetric)
    if not singular:  # a tenth of the time of the eigenvalues
        under: torch.Tensor = factor.mT @ W
        return under
    eigenvalues, vectors = torch.linalg.eigh(symmetric)
    _checks.semidefinite_spectrum("metric", float(eigenvalues[0]), float(eigenvalues[-1]))
    positive = eigenvalues > 0
    root: torch.Tensor = vectors[:, positive].mul_(eigenvalues[positive].sqrt()).mT  # (r', r)
    return root @ W


def _centre_(H: torch.Tensor, mean: torch.Tensor, scale: float) -> torch.Tensor:
    """Centre a Hessian H / scale (d, d) in place, and return which columns are constant, (d,) bool."""
    constant = (H.diagonal() - 2 * mean.square() / scale).abs() <= 1e-12 * H.diagonal()
    H.addr_(mean, mean, alpha=-2 / scale)
    H[constant] = 0  # exact zeros instead of rounding errors
    H[:, constant] = 0
    return constant


def _largest_eigenvalue_bound(matrix: torch.Tensor) -> float:
    """Return a lower bound of the largest eigenvalue of a semidefinite matrix.

    The bound is the largest diagonal value or ‖M‖² / tr M, whichever is larger.
    """
    diagonal = matrix.diagonal()
    trace = float(diagonal.sum())
    norm = min(float(torch.linalg.matrix_norm(matrix)), trace)  # exceeds tr M only if indefinite
    return max(float(diagonal.max()), norm**2 / trace if trace > 0 else 0.0)


def _check_semidefinite(name: str, matrix: torch.Tensor, largest: float) -> None:
    """Raise ValueError if a symmetric matrix has an eigenvalue too far below zero.

    The limit is −1e-6 times `largest` or the largest eigenvalue, whichever is larger. Eigenvalues are
    computed only if the matrix is not positive definite with 1e-6 times `largest` added to its diagonal.
    """
    if largest > 0:
        shifted = matrix.clone()
        shifted.diagonal().add_(_checks.DEFINITENESS * largest)
        if cholesky_(shifted):
            return
    eigenvalues = torch.linalg.eigvalsh(matrix)
    _checks.semidefinite_spectrum(name, float(eigenvalues[0]), max(largest, float(eigenvalues[-1])))

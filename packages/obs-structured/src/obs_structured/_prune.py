"""Prune one weight matrix: check what is given, damp it as needed, solve, keep the trace."""

import logging
from collections.abc import Callable

import torch

from obs_structured import _checks
from obs_structured._blocked import NonPositivePivot
from obs_structured._factor import cholesky_
from obs_structured._solve import METHODS, reversed_columns, solve
from obs_structured._trace import Trace, columns_of

logger = logging.getLogger("obs_structured")

# Relative damping with enough samples, and with fewer than two for each column.
DAMPING, DAMPING_FEW = 1e-2, 1e-1


@torch.no_grad()
def prune(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int = 1,
    mean: torch.Tensor | None = None,
    metric: torch.Tensor | None = None,
    damping: float | None = None,
    count: int | None = None,
    method: str = "obs",
    progress: Callable[[int, int], None] | None = None,
    *,
    update: bool = True,
) -> Trace:
    """Remove groups of columns from a weight matrix one at a time, with the least harm to its output.

    Structured Optimal Brain Surgeon (Algorithm 1 of ZipLM): each step removes the group whose loss, after the
    best correction of all columns left, is least. One call covers all levels.

    Args:
        weight: W, (out_features, in_features), any float dtype and device. Work is done there, in float64.
        hessian: H, (in_features, in_features): 2 Σ x xᵀ / n of the layer's inputs, as in `Moments.hessian`.
        group_size: consecutive columns removed together; must divide in_features. 1 for single neurons, the
            head dimension for attention heads.
        mean: μ, (in_features,): mean input. With it the problem is centred (H − 2 μ μᵀ), and the bias absorbs
            the mean of what is removed: add `Trace.bias_shift` to it.
        metric: M, (out_features, out_features) symmetric positive semidefinite, or (out_features,) a
            diagonal: groups are chosen by tr(M ΔW H ΔWᵀ). The weights for a given choice do not depend on it.
        damping: what is added to the diagonal, relative to its mean. Default: 0.01, or 0.1 if `count` is
            below 2 * in_features. Raised, with a logged warning, where the matrix cannot be factorised.
        count: number of vectors behind `hessian`, for the default damping.
        method: "obs", or a baseline: "scores-once" (the losses of OBS, not updated between removals),
            "activation" (‖W_j‖² H_jj, as in Wanda) or "magnitude" (‖W_j‖²).
        progress: called as progress(groups removed, groups) now and then.
        update: whether the columns left are corrected for what is removed, by least squares.

    Returns:
        A `Trace` with the order, and the weights and errors of every level.

    Raises:
        ValueError: on non-finite values, shapes that do not fit, an asymmetric or indefinite `hessian` or
            `metric`, a `group_size` that does not divide, an all-zero `weight`, `hessian` or output.
    """
    _check_arguments(weight, hessian, group_size, mean, damping, count, method)
    # Devices without float64 (mps) hand the work to the CPU.
    device = torch.device("cpu") if weight.device.type == "mps" else weight.device
    W = weight.detach().to(device, torch.float64)  # (r, d)
    H = _checks.symmetrised("hessian", hessian.detach().to(device, torch.float64))  # (d, d), ours to change
    scored = W if metric is None else _root("metric", metric.detach().to(W), len(W)) @ W  # for the choice
    never_varies = H.diagonal() <= 0  # (d,)
    if mean is not None:
        mean = mean.detach().to(device, torch.float64)
        never_varies = H.diagonal() - 2 * mean.square() <= 1e-12 * H.diagonal()
        H.addr_(mean, mean, alpha=-2)
    _check_semidefinite("hessian" if mean is None else "hessian - 2 mean mean.T", H)

    # Groups that never vary cost nothing, and the matrix may be regular without them: they go first.
    free = never_varies.view(-1, group_size).all(1) & (method == "obs")  # (groups,)
    rest = (~free).nonzero()[:, 0]  # group ids
    columns = columns_of(rest, group_size)
    part = H[columns][:, columns] if free.any() else H  # (live, live)
    report = None if progress is None else (lambda n: progress(n + len(free) - len(rest), len(free)))
    relative = damping if damping is not None else _default_damping(len(H), count)
    while True:
        absolute = relative * float(part.diagonal().mean()) if len(part) else 0.0
        try:
            solution = solve(scored[:, columns], part, group_size, absolute, method, update, report)
            break
        except NonPositivePivot:
            relative = max(10 * relative, 1e-8)
            logger.warning("the Hessian cannot be factorised: damping raised to %g of its diagonal", relative)

    order = torch.cat([free.nonzero()[:, 0], rest[solution.order]])
    positions = reversed_columns(order, group_size)
    live, W, K = len(part), W[:, positions], solution.inverse_factor
    if K is None:
        matrix, components = H[positions][:, positions], W
        energy, rounding = float((W @ matrix * W).sum()), 0.0  # energy: tr(W H Wᵀ)
    else:
        Y = solution.components if metric is None else None
        if Y is None:
            Y = torch.linalg.solve_triangular(K, W[:, :live], upper=False, left=False)
        matrix, components = _with_identity(K, len(H)), torch.cat([Y, W[:, live:]], dim=1)
        damped_energy = float(Y.square().sum())
        energy = damped_energy - absolute * float(W[:, :live].square().sum())
        rounding = 1e-13 * damped_energy
    if mean is not None:
        mean = mean[positions]
        energy += 2 * float((W @ mean).square().sum())
        mean = mean if K is None else matrix @ mean
    if energy <= rounding:
        raise ValueError("weight @ inputs is zero on all calibration data; there is no output to preserve")
    return Trace(
        order,
        components,
        matrix,
        group_size=group_size,
        updated=update,
        damping=relative,
        absolute_damping=absolute,
        free_columns=len(H) - live,
        mean=mean,
        dtype=weight.dtype,
    )


def _check_arguments(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int,
    mean: torch.Tensor | None,
    damping: float | None,
    count: int | None,
    method: str,
) -> None:
    _checks.finite_matrix("weight", weight)
    columns = weight.shape[1]
    _checks.finite_matrix("hessian", hessian, shape=(columns, columns))
    _checks.nonzero("weight", weight)
    _checks.nonzero("hessian", hessian)
    if group_size < 1 or columns % group_size:
        raise ValueError(
            f"group_size is {group_size}, but must be a positive divisor of the {columns} columns"
        )
    if mean is not None:
        _checks.finite_matrix("mean", mean, shape=(columns,))
    if damping is not None and not 0 <= damping < float("inf"):
        raise ValueError(f"damping is {damping}, but must be a finite number that is not negative")
    if count is not None and count < 1:
        raise ValueError(f"count is {count}, but must be at least 1")
    _checks.one_of("method", method, METHODS)


def _default_damping(columns: int, count: int | None) -> float:
    return DAMPING_FEW if count is not None and count < 2 * columns else DAMPING


def _with_identity(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """The matrix itself, or extended to (size, size) by ones on the diagonal."""
    if len(matrix) == size:
        return matrix
    extended = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    extended[: len(matrix), : len(matrix)] = matrix
    return extended


def _check_semidefinite(name: str, matrix: torch.Tensor) -> None:
    """Raise if the smallest eigenvalue is below −1e-6 of the largest; cheap where it is not.

    ‖M‖² / tr M and the largest diagonal value are lower bounds of a semidefinite matrix's largest eigenvalue.
    If a shift by 1e-6 of that makes M definite, all is well; else the eigenvalues themselves decide.
    """
    diagonal = matrix.diagonal()
    trace = float(diagonal.sum())
    if trace > 0:
        largest = max(float(diagonal.max()), float(torch.linalg.matrix_norm(matrix)) ** 2 / trace)
        shifted = matrix.clone()
        shifted.diagonal().add_(_checks.DEFINITENESS * largest)
        if cholesky_(shifted):
            return
    eigenvalues = torch.linalg.eigvalsh(matrix)
    _checks.semidefinite_spectrum(name, float(eigenvalues[0]), float(eigenvalues[-1]))


def _root(name: str, metric: torch.Tensor, rows: int) -> torch.Tensor:
    """R (r', r) with RᵀR = metric, for a metric (r, r) or a diagonal (r,)."""
    if metric.ndim == 1:
        _checks.finite_matrix(name, metric, shape=(rows,))
        _checks.nonzero(name, metric)
        _checks.semidefinite_spectrum(name, float(metric.min()), float(metric.max()))
        return metric.clamp(min=0).sqrt().diag()
    _checks.finite_matrix(name, metric, shape=(rows, rows))
    _checks.nonzero(name, metric)
    eigenvalues, vectors = torch.linalg.eigh(_checks.symmetrised(name, metric))
    _checks.semidefinite_spectrum(name, float(eigenvalues[0]), float(eigenvalues[-1]))
    root: torch.Tensor = vectors[:, eigenvalues > 0].mul_(eigenvalues[eigenvalues > 0].sqrt()).mT
    return root

"""Prune one weight matrix: check what is given, damp it as needed, solve, keep the trace."""

import logging
from collections.abc import Callable

import torch

from obs_structured import _checks
from obs_structured._blocked import NonPositivePivot
from obs_structured._factor import cholesky_
from obs_structured._solve import METHODS, solve
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
    _check_arguments(weight, hessian, group_size, mean, metric, damping, count, method)
    # Devices without float64 (mps) hand the work to the CPU.
    device = torch.device("cpu") if weight.device.type == "mps" else weight.device
    W = weight.detach().to(device, torch.float64)  # (r, d)
    H = _checks.symmetrised("hessian", hessian.detach().to(device, torch.float64))  # (d, d), ours to change
    # Within, H and the weights that the choice looks at are of size one, so that squares stay in range.
    scale = float(H.diagonal().mean().abs()) or 1.0
    H /= scale
    scored = W if metric is None else _under_metric(metric, W)
    unit = float(scored.abs().max())
    scored = scored / unit
    largest = _largest_eigenvalue_bound(H)
    never_varies = H.diagonal() <= 0  # (d,)
    if mean is not None:
        mean = mean.detach().to(device, torch.float64)
        never_varies = (H.diagonal() - 2 * mean.square() / scale).abs() <= 1e-12 * H.diagonal()
        H.addr_(mean, mean, alpha=-2 / scale)
        H[never_varies] = 0  # what rounding left
        H[:, never_varies] = 0
    _check_semidefinite("hessian" if mean is None else "hessian - 2 mean mean.T", H, largest)

    # Groups that never vary cost nothing, and the matrix may be regular without them: they go first.
    free = never_varies.view(-1, group_size).all(1) & (method == "obs")  # (groups,)
    rest = (~free).nonzero()[:, 0]  # group ids
    columns = columns_of(rest, group_size)
    part = H[columns][:, columns] if free.any() else H  # (live, live)
    report = None if progress is None else (lambda n: progress(n + len(free) - len(rest), len(free)))
    relative = damping if damping is not None else _default_damping(len(H), count)
    level = float(part.diagonal().sum()) / max(1, len(part)) or 1.0
    while True:
        try:
            solution = solve(scored[:, columns], part, group_size, relative * level, method, update, report)
            break
        except NonPositivePivot:
            relative = max(10 * relative, 1e-8)
            if relative > 1e6:
                raise ValueError("hessian cannot be factorised however large the damping") from None
            logger.warning("the Hessian cannot be factorised: damping raised to %g of its diagonal", relative)
    if progress is not None and (method != "obs" or not len(part)):
        progress(len(free), len(free))

    order = torch.cat([free.nonzero()[:, 0], rest[solution.order]])
    positions = columns_of(order.flip(0), group_size)
    live, W, K = len(part), W[:, positions], solution.inverse_factor
    if K is None:
        matrix, components = H[positions][:, positions], W
        energy, rounding = float((W @ matrix * W).sum()), 0.0  # energy: tr(W H Wᵀ)
    else:
        if metric is None and solution.components is not None:
            Y = solution.components * unit
        else:
            Y = torch.linalg.solve_triangular(K, W[:, :live], upper=False, left=False)
        matrix, components = _with_identity(K, len(H)), torch.cat([Y, W[:, live:]], dim=1)
        damped_energy = float(Y.square().sum())
        energy = damped_energy - relative * level * float(W[:, :live].square().sum())
        rounding = 1e-13 * damped_energy
    if mean is not None:
        mean = mean[positions]
        energy += 2 * float((W @ mean).square().sum()) / scale
        mean = mean if K is None else matrix @ mean
    if not rounding < energy < torch.inf:
        raise ValueError(f"weight @ inputs has size {energy * scale:.3g}; there is no output to preserve")
    return Trace(
        order,
        components,
        matrix,
        group_size=group_size,
        updated=update,
        damping=relative,
        absolute_damping=relative * level,
        free_columns=len(H) - live,
        mean=mean,
        dtype=weight.dtype,
        scale=scale,
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
    _checks.finite_tensor("weight", weight, 2)
    rows, columns = weight.shape
    _checks.finite_tensor("hessian", hessian, (columns, columns))
    _checks.nonzero("weight", weight)
    _checks.nonzero("hessian", hessian)
    if not isinstance(group_size, int) or group_size < 1 or columns % group_size:
        raise ValueError(
            f"group_size is {group_size}, but must be a positive divisor of the {columns} columns"
        )
    if mean is not None:
        _checks.finite_tensor("mean", mean, (columns,))
    if metric is not None:
        _checks.finite_tensor("metric", metric, (rows, rows), (rows,))
        _checks.nonzero("metric", metric)
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


def _largest_eigenvalue_bound(matrix: torch.Tensor) -> float:
    """Lower bound of the largest eigenvalue of a semidefinite matrix: ‖M‖² / tr M, or a diagonal value."""
    diagonal = matrix.diagonal()
    trace = float(diagonal.sum())
    return max(
        float(diagonal.max()), float(torch.linalg.matrix_norm(matrix)) ** 2 / trace if trace > 0 else 0.0
    )


def _check_semidefinite(name: str, matrix: torch.Tensor, largest: float) -> None:
    """Raise if the smallest eigenvalue is below −1e-6 of `largest`, or of the largest; cheap where it is not.

    If a shift by 1e-6 of `largest` makes the matrix definite, all is well; else its eigenvalues decide.
    """
    if largest > 0:
        shifted = matrix.clone()
        shifted.diagonal().add_(_checks.DEFINITENESS * largest)
        if cholesky_(shifted):
            return
    eigenvalues = torch.linalg.eigvalsh(matrix)
    _checks.semidefinite_spectrum(name, float(eigenvalues[0]), max(largest, float(eigenvalues[-1])))


def _under_metric(metric: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """R W (r', d) with RᵀR = metric, for a metric (r, r) or a diagonal (r,)."""
    metric = metric.detach().to(W)
    if metric.ndim == 1:
        _checks.semidefinite_spectrum("metric", float(metric.min()), float(metric.max()))
        return metric.clamp(min=0).sqrt()[:, None] * W
    eigenvalues, vectors = torch.linalg.eigh(_checks.symmetrised("metric", metric))
    _checks.semidefinite_spectrum("metric", float(eigenvalues[0]), float(eigenvalues[-1]))
    used = eigenvalues > 0
    root: torch.Tensor = vectors[:, used].mul_(eigenvalues[used].sqrt()).mT  # (r', r)
    return root @ W

"""Narrower attention heads: the values of every head, and the output matrix that reads them.

Symbols: Wo (n, H d) is the output matrix, z its inputs (the values of H heads of size d, after attention),
and C the second moment of z, centred if there is a mean μ; C̄ = C + λI. Inside a head, any invertible change
of basis is free, so a head can be made narrower: with U_h (d, r), its value rows become U_hᵀ Wv_h, and Wo is
fitted to Uᵀz.

Bases. For one head, the best subspace of every width r under the metric M = RᵀR is C̄_hh^-½ V_r, where V_r
are the first r right singular vectors of R Wo_h C̄_hh^½. A QR factorisation keeps these leading spans, so U_h
is the first r columns of one orthogonal matrix Q_h: all widths come from one factorisation per head.

Weights of all heads at width r, with B = blockdiag(U_h): W_r = Wo C̄ B (Bᵀ C̄ B)⁻¹, the least-squares fit.
Heads are then removed from W_r by `prune` on BᵀCB, with the same λ. The errors of both steps add up, except
for the term 2 tr(M ΔW_r C B ΔW_hᵀ), which is small (it would be zero with C̄ instead of C) and is counted.
"""

import torch

from obs_structured import _checks
from obs_structured._normalise import Problem, normalise
from obs_structured._width_trace import WidthTrace


@torch.no_grad()
def narrow_heads(
    output: torch.Tensor,
    hessian: torch.Tensor,
    head_size: int,
    mean: torch.Tensor | None = None,
    metric: torch.Tensor | None = None,
    damping: float | None = None,
    count: int | None = None,
) -> WidthTrace:
    """Make attention heads narrower, and remove whole heads, changing the output as little as possible.

    Everything here depends on the inputs z of the output matrix only; the value rows follow by
    `WidthTrace.project`.

    Args:
        output: Wo, (out_features, heads * head_size), any float dtype: the matrix that reads the values of
            all heads.
        hessian: (heads * head_size, heads * head_size): 2 Σ w z zᵀ / Σ w, see `Moments.hessian`.
        head_size: d, number of columns of each head; must divide the columns of `output`.
        mean: μ, (heads * head_size,): mean of z. If given, the bias absorbs the mean of what is removed.
        metric: M, (out_features, out_features), symmetric positive semidefinite, or its diagonal,
            (out_features,): the error that bases and heads are chosen by. Default: all outputs count alike.
        damping: as in `prune`.
        count: as in `prune`.

    Returns:
        A `WidthTrace`, from which every width and every number of heads can be read.

    Raises:
        ValueError: as in `prune`.
    """
    columns = output.shape[-1] if isinstance(output, torch.Tensor) and output.ndim == 2 else 0
    if columns and (type(head_size) is not int or head_size < 1 or columns % head_size):
        raise ValueError(
            f"head_size is {_checks.shortened(head_size)}, but must be a positive divisor of the {columns} "
            "columns"
        )
    problem = normalise(output, hessian, head_size, mean, metric, damping, count, "obs", update=True)
    live = problem.hessian.diagonal().view(-1, head_size)[problem.live_groups]
    absolute = problem.damping * (float(live.mean()) if len(live) else 1.0)
    lower = problem.hessian.tril()  # what a file holds; centring may have rounded both halves differently
    return WidthTrace(
        (problem.weight / problem.weight_unit).contiguous(),
        lower + lower.tril(-1).mT,
        _bases(problem, absolute),
        mean=problem.mean,
        metric=None if metric is None else metric.detach().to(problem.weight),
        absolute_damping=absolute,
        dtype=problem.dtype,
        scale=problem.scale,
        unit=problem.weight_unit,
    )


def _bases(problem: Problem, damping: float) -> torch.Tensor:
    """Return Q (H, d, d), orthogonal; the first r columns of Q_h span the best subspace of head h."""
    size, heads = problem.group_size, len(problem.hessian) // problem.group_size
    blocks = torch.stack([problem.hessian[h : h + size, h : h + size] for h in range(0, heads * size, size)])
    eigenvalues, vectors = torch.linalg.eigh(blocks)  # (H, d), (H, d, d)
    floor = 1e-14 * problem.hessian.diagonal().max()
    roots = (eigenvalues + damping).clamp(min=floor).sqrt()
    scored = problem.scored.view(-1, heads, size).transpose(0, 1)  # (H, r', d): R Wo_h
    A = scored @ (vectors * roots[:, None, :])  # R Wo_h C̄^½ in the basis of eigenvectors
    _, directions = torch.linalg.eigh(A.mT @ A)  # ascending
    spans = vectors @ (directions.flip(-1) / roots[:, :, None])  # C̄^-½ V
    Q: torch.Tensor = torch.linalg.qr(spans).Q
    return Q.contiguous()

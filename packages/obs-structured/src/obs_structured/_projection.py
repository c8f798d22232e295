"""Rows of a projection that makes the values, queries or keys of attention heads, in another basis."""

import torch

from obs_structured import _checks


def project_rows(
    projections: torch.Tensor, rows: torch.Tensor, heads: int, kept: torch.Tensor
) -> torch.Tensor:
    """Multiply the rows of each kept head by its projection.

    Args:
        projections: (kept, r, d) float64.
        rows: (heads d, …), any float dtype: a weight or a bias.
        heads: number of heads in `rows`.
        kept: (kept,) int64: heads to keep.

    Returns:
        (kept r, …) in the dtype of `rows`.

    Raises:
        ValueError: if the rows are not finite, or are not as many as the heads have.
    """
    size = projections.shape[-1]
    _checks.finite_tensor("rows", rows, (heads * size, *rows.shape[1:]))
    blocks = rows.detach().to(projections).reshape(heads, size, -1)[kept]  # (kept, d, …)
    return (projections @ blocks).reshape(-1, *rows.shape[1:]).to(rows.dtype)

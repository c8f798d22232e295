"""Cost of removing a group of columns, from diagonal blocks of matrices, and the result of an elimination.

Groups have g consecutive columns each; block (g, g) number j on the diagonal of a matrix belongs to group j.
"""

from typing import NamedTuple

import torch


class Elimination(NamedTuple):
    """Result of `eliminate` for d columns in n groups."""

    order: torch.Tensor  # (n,) int64: the group removed at each step
    inverse_factor: torch.Tensor  # (d, d): K, lower triangular; columns in reverse order of removal
    components: torch.Tensor  # (r, d): Y = W K⁻¹; columns in reverse order of removal


class NonPositivePivot(ArithmeticError):
    """The matrix being factorised is not positive definite to working precision."""


def removal_costs(A_diagonal: torch.Tensor, G_diagonal: torch.Tensor) -> torch.Tensor:
    """Return the cost tr(A_SS⁻¹ G_SS) of removing each group S, (...).

    Args:
        A_diagonal: A_SS, (..., g, g): blocks of the inverse of the damped Hessian.
        G_diagonal: G_SS, (..., g, g): blocks of WᵀW.

    Raises:
        NonPositivePivot: if a block A_SS is not positive definite; not checked for g = 1.
    """
    if A_diagonal.shape[-1] == 1:
        return (G_diagonal / A_diagonal)[..., 0, 0]
    root, failed = torch.linalg.cholesky_ex(A_diagonal)
    if failed.any():
        raise NonPositivePivot
    return torch.cholesky_solve(G_diagonal, root).diagonal(dim1=-2, dim2=-1).sum(-1)


def diagonal_blocks(matrix: torch.Tensor, g: int) -> torch.Tensor:
    """Return a view (n, g, g) of the diagonal blocks of a matrix (n g, n g)."""
    n = matrix.shape[0] // g
    return matrix.view(n, g, n, g).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def gram_blocks(Wt: torch.Tensor, g: int) -> torch.Tensor:
    """Return the diagonal blocks (n, g, g) of WᵀW, given Wᵀ (n g, r)."""
    if g == 1:
        norms: torch.Tensor = torch.linalg.vector_norm(Wt, dim=1)
        return norms.square_()[:, None, None]
    groups = Wt.view(-1, g, Wt.shape[1])
    return groups @ groups.mT


def gram_blocks_by_step(X: torch.Tensor, Y: torch.Tensor, steps: int, g: int) -> torch.Tensor:
    """Return the diagonal blocks (steps, n, g, g) of XᵀY, separately for each step.

    Args:
        X: (steps * g, n g): g rows for each step.
        Y: (steps * g, n g), likewise.
        steps: number of steps.
        g: rows per step, and columns per group.
    """
    if g == 1:
        return (X * Y)[:, :, None, None]
    X, Y = (rows.view(steps, g, -1, g).transpose(1, 2) for rows in (X, Y))  # (steps, n, g rows, g columns)
    return X.mT @ Y

"""Structured OBS elimination of wide groups, such as attention heads: one group at a time.

The symbols are those of `_blocked.py`. There, groups are removed in blocks of about 96 columns, because a
product with fewer columns is limited by memory bandwidth. A head has that many columns already, so there is
nothing to gain from choosing several heads in advance: each step scores all groups from the current weights,
removes the cheapest one, and needs neither candidates nor their verification.
"""

from collections.abc import Callable

import torch

from obs_structured._costs import (
    Elimination,
    NonPositivePivot,
    diagonal_blocks,
    gram_blocks,
    gram_blocks_by_step,
    removal_costs,
)

WIDE = 8  # columns per group from which this elimination is faster than the blocked one


def eliminate_groups(
    weight: torch.Tensor,
    inverse: torch.Tensor,
    group_size: int,
    progress: Callable[[int], None] | None = None,
) -> Elimination:
    """Remove all groups one at a time; see `_blocked.eliminate` for arguments and result."""
    d, g = inverse.shape[0], group_size
    groups = d // g
    order = list(range(groups))  # group at each place; removed ones are last, in reverse order of removal
    columns = torch.arange(d, device=inverse.device)  # (d,): column at each position
    # (d, r): current Wᵀ at the remaining positions, Yᵀ at the removed ones.
    Wt = weight.mT.clone(memory_format=torch.contiguous_format)
    Kt = torch.zeros_like(inverse)  # (d, d): Kᵀ, filled from the right
    A_diagonal = diagonal_blocks(inverse, g).clone()  # (n, g, g)
    for remaining in range(groups, 0, -1):
        m, last = remaining * g, remaining - 1
        place = _cheapest(A_diagonal[:remaining], gram_blocks(Wt[:m], g))
        _swap(place, last, g, Wt, Kt[:, m:], columns, A_diagonal, order)
        pivots = slice(m - g, m)
        # The last column of a group is eliminated first, hence the Cholesky factor from the end: A_SS = Rᵀ R
        # with R lower triangular.
        A_rows = inverse[columns[pivots]].index_select(1, columns[:m])  # (g, m)
        A_rows.addmm_(Kt[pivots, m:], Kt[:m, m:].mT, alpha=-1)
        root = _cholesky_from_the_end(A_rows[:, pivots])  # R (g, g)
        L = torch.linalg.solve_triangular(root.mT, A_rows, upper=True)  # (g, m): R⁻ᵀ A_S
        L[:, pivots] = root
        U = torch.linalg.solve_triangular(root.mT, Wt[pivots], upper=True)  # (g, r)
        Wt[: m - g].addmm_(L[:, : m - g].mT, U, alpha=-1)
        Wt[pivots] = U
        A_diagonal[:last] -= gram_blocks_by_step(L[:, : m - g], L[:, : m - g], 1, g)[0]
        Kt[:m, pivots] = L.mT
        if progress is not None:
            progress(groups - remaining + 1)
    return Elimination(torch.tensor(order[::-1], device=inverse.device), Kt.mT, Wt.mT)


def _cheapest(A_diagonal: torch.Tensor, G_diagonal: torch.Tensor) -> int:
    """Return the place of the group whose removal costs least, given blocks (n, g, g)."""
    return int(removal_costs(A_diagonal, G_diagonal).argmin())


def _cholesky_from_the_end(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower triangular R with RᵀR = `matrix` (g, g)."""
    root, failed = torch.linalg.cholesky_ex(matrix.flip(0, 1))
    if failed:
        raise NonPositivePivot
    R: torch.Tensor = root.mT.flip(0, 1)
    return R


def _swap(
    place: int,
    last: int,
    g: int,
    Wt: torch.Tensor,
    Kt: torch.Tensor,
    columns: torch.Tensor,
    A_diagonal: torch.Tensor,
    order: list[int],
) -> None:
    """Exchange the group at a place with the last remaining one, in all tensors that are kept by position."""
    if place == last:
        return
    one, other = slice(place * g, (place + 1) * g), slice(last * g, (last + 1) * g)
    for tensor in (Wt, Kt, columns):
        tensor[one], tensor[other] = tensor[other].clone(), tensor[one].clone()
    A_diagonal[place] = A_diagonal[last]
    order[place], order[last] = order[last], order[place]

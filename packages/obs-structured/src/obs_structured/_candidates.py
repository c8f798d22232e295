"""Structured OBS elimination among a few candidate groups, on matrices small enough to stay in cache.

The symbols are those of `_blocked.py`.
"""

from typing import NamedTuple

import torch

from obs_structured._costs import NonPositivePivot, diagonal_blocks, removal_costs

# A removed group gets A_SS = I and G_SS = PROHIBITIVE * I, hence a cost that no remaining group reaches.
PROHIBITIVE = 1e300


class Choice(NamedTuple):
    """The b groups chosen among c candidates, in the order of their removal."""

    picks: torch.Tensor  # (b,) indices into the candidates
    pivots: torch.Tensor  # (b g,) row indices of the chosen groups in the candidates' matrices
    costs: torch.Tensor  # (b,) cost of each removal
    l: torch.Tensor  # (b g, b g) rows l, at the pivot columns only
    v: torch.Tensor  # (b g, b g) rows v, at the pivot columns only


def choose(A: torch.Tensor, G: torch.Tensor, count: int, g: int) -> Choice:
    """Remove the cheapest candidate `count` times.

    Args:
        A: (c g, c g): the candidates' part of the inverse of the damped Hessian. May be overwritten.
        G: (c g, c g): the candidates' part of WᵀW. May be overwritten.
        count: b, number of groups to remove, at most c.
        g: columns per group.

    Raises:
        NonPositivePivot: if a pivot is not positive.
    """
    return _choose_columns(A, G, count) if g == 1 else _choose_groups(A, G, count, g)


def _choose_columns(A: torch.Tensor, G: torch.Tensor, count: int) -> Choice:
    """Implement `choose` for groups of one column.

    The loop runs thousands of times on small matrices, so the number of torch calls decides its speed.
    Therefore [A G] is stored as one matrix M, and the single product M − [l; v]ᵀ [[l v], [0 l]] computes both
    A − lᵀl and G − lᵀv − vᵀl.
    """
    size = len(A)
    M = torch.cat([A, G], dim=1)  # (c, 2 c)
    A_diagonal, G_diagonal = (half.diagonal() for half in M.tensor_split(2, dim=1))  # views (c,)
    # Views of every row and diagonal entry, made once because indexing in the loop is slower.
    rows, A_at, G_at = M.unbind(), A_diagonal.unbind(), G_diagonal.unbind()
    X = A.new_zeros(2, 2 * size)  # [[l v], [0 l]]
    lv, l, v, l_below = X[0], X[0, :size], X[0, size:], X[1, size:]
    lv_columns = lv.view(2, size).mT  # (c, 2)
    steps = A.new_empty(count, 2 * size)
    cost = A.new_empty(size)
    picks, costs = [], []
    for step in steps.unbind():
        torch.div(G_diagonal, A_diagonal, out=cost)
        pick = int(cost.argmin())
        pivot, g_pivot = A_at[pick].item(), G_at[pick].item()
        if not pivot > 0:
            raise NonPositivePivot
        picks.append(pick)
        costs.append(g_pivot / pivot)
        torch.mul(rows[pick], pivot**-0.5, out=lv)
        v.add_(l, alpha=-g_pivot / (2 * pivot))
        l_below.copy_(l)
        step.copy_(lv)
        M.addmm_(lv_columns, X, alpha=-1)
        A_at[pick].fill_(1)
        G_at[pick].fill_(PROHIBITIVE)
    return _at_pivots(picks, costs, steps, 1)


def _choose_groups(A: torch.Tensor, G: torch.Tensor, count: int, g: int) -> Choice:
    """Implement `choose` for groups of g columns."""
    size = len(A)
    A_diagonal, G_diagonal = diagonal_blocks(A, g), diagonal_blocks(G, g)  # views (c, g, g)
    identity = torch.eye(g, dtype=A.dtype, device=A.device)
    steps = A.new_empty(count * g, 2 * size)
    picks, costs = [], []
    for step in range(count):
        cost = removal_costs(A_diagonal, G_diagonal)  # (c,)
        pick = int(cost.argmin())
        picks.append(pick)
        costs.append(cost[pick].item())
        group = slice(pick * g, (pick + 1) * g)
        root, failed = torch.linalg.cholesky_ex(A[group, group])  # R (g, g)
        if failed:
            raise NonPositivePivot
        rows = steps[step * g : (step + 1) * g]  # [l v] (g, 2 c g)
        rows[:] = torch.linalg.solve_triangular(root, torch.cat([A[group], G[group]], dim=1), upper=False)
        l, v = rows.tensor_split(2, dim=1)
        half = torch.linalg.solve_triangular(root.mT, v[:, group], upper=True, left=False).mul_(0.5)  # (g, g)
        v.addmm_(half, l, alpha=-1)
        A.addmm_(l.mT, l, alpha=-1)
        G.addmm_(l.mT, v, alpha=-1).addmm_(v.mT, l, alpha=-1)
        A_diagonal[pick] = identity
        G_diagonal[pick] = PROHIBITIVE * identity
    return _at_pivots(picks, costs, steps, g)


def _at_pivots(picks: list[int], costs: list[float], steps: torch.Tensor, g: int) -> Choice:
    """Collect a `Choice`, keeping only the pivot columns of the rows [l v] in `steps`, (b g, 2 c g)."""
    chosen = torch.tensor(picks, device=steps.device)
    pivots = (chosen[:, None] * g + torch.arange(g, device=steps.device)).flatten()
    l, v = (half.index_select(1, pivots) for half in steps.tensor_split(2, dim=1))
    return Choice(chosen, pivots, steps.new_tensor(costs), l, v)

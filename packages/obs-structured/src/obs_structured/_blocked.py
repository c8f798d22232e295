"""Structured OBS elimination, blocked: the order of the paper's Algorithm 1 at matrix-product speed.

Symbols: W (r, d) weights, A (d, d) inverse of the damped Hessian, G = WᵀW. Removing a group S of columns with
A_SS = R Rᵀ turns, with l = R⁻¹ A_S, u = R⁻¹ W_Sᵀ and v = R⁻¹ G_S − ½ (R⁻¹ G_SS R⁻ᵀ) l,

    A into A − lᵀl,    W into W − uᵀl,    G into G − vᵀl − lᵀv,    at a cost of tr(A_SS⁻¹ G_SS).

Algorithm 1 does this to all of A and W for every group, at the speed of memory. This differs in four ways:

1. Candidates. For some 96 columns at a time, A and G are brought up to date for the cheapest groups among
   themselves. The next removals are chosen there, on matrices small enough to stay in cache.
2. Verification. The rows l and v of the removals chosen are then completed for all columns. They yield the
   cost of every other group at every step: where one of those was cheaper than the one chosen, the block is
   cut short there. So the choice is exact; only the speed depends on the candidates.
3. A is never rewritten: its current rows are those of A − KᵀK with K the rows l so far, one product per block
   for the rows removed. W, which has fewer rows, is updated once per block.
4. Columns move: groups removed go to the end, the first one last, and what is left really shrinks.

In that arrangement K is lower triangular and K A⁻¹ Kᵀ = I: it is the inverse of the Cholesky factor of the
damped Hessian, and the weights and errors of all levels follow from it (see `Trace`). The rows u make up Yᵀ
for Y = W K⁻¹.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

# Columns removed per block; candidates among which they are chosen, as a multiple and some more.
BLOCK_COLUMNS = 96
SURPLUS, SPARE_COLUMNS = 1.4, 8

PROHIBITIVE = 1e300  # what is gone gets A = 1 and this G, and so a cost that nothing else has


class NonPositivePivot(ArithmeticError):
    """The matrix that is eliminated is not positive definite to working precision."""


class Elimination(NamedTuple):
    """Result of `eliminate` for d columns in n groups."""

    order: torch.Tensor  # (n,) int64: the group removed at each step
    inverse_factor: torch.Tensor  # (d, d): K, lower triangular; columns in reverse order of removal
    components: torch.Tensor  # (r, d): Y = W K⁻¹, columns likewise


def eliminate(
    weight: torch.Tensor,
    inverse: torch.Tensor,
    group_size: int,
    progress: Callable[[int], None] | None = None,
) -> Elimination:
    """Remove all groups of columns one at a time, the one with the least cost first.

    Args:
        weight: (r, d) float64.
        inverse: (d, d) float64, the inverse of the damped Hessian; read only. Values of a sane size: that
            of weight and inverse must leave squares and reciprocals in range.
        group_size: g, a divisor of d.
        progress: called with the number of groups removed after every block.

    Raises:
        NonPositivePivot: if a pivot is not positive.
    """
    g, d = group_size, inverse.shape[0]
    n = d // g  # groups left; they occupy the first n * g positions
    columns = torch.arange(d, device=inverse.device)  # position -> column
    Wt = weight.mT.clone(memory_format=torch.contiguous_format)  # (d, r); rows of removed columns become Yᵀ
    Kt = torch.zeros_like(inverse)  # (d, d): Kᵀ, filled from the right
    A_diagonal = diagonal_blocks(inverse, g).clone()  # (n, g, g), kept current for all groups
    block = max(1, BLOCK_COLUMNS // g)
    surplus = round(SURPLUS * block) + max(1, SPARE_COLUMNS // g)
    buffers = inverse.new_empty(3, min(block, n) * g * d)  # fresh memory costs page faults: it is taken once

    while n:
        m, b = n * g, min(block, n)
        G_diagonal = gram_blocks(Wt[:m], g)  # (n, g, g)
        costs = removal_costs(A_diagonal, G_diagonal)  # (n,)
        candidates = costs.topk(min(surplus, n), largest=False).indices  # (c,)
        rows = _columns_of(candidates, g)  # (c g,) positions
        K_rows, W_rows = Kt[rows, m:], Wt[rows]  # (c g, removed columns), (c g, r)
        A_small = inverse[columns[rows]].index_select(1, columns[rows]).addmm_(K_rows, K_rows.mT, alpha=-1)
        choice = _choose(A_small, W_rows @ W_rows.mT, b, g)
        T, S = choice.l.triu(), _upper_blocks(choice.v, g)  # (b g, b g): zeros in theory are made so
        T_inverse = torch.linalg.solve_triangular(T, _identity(len(T), T), upper=True)

        pivots = rows[choice.pivots]  # (b g,) positions
        whole, A_pivots, G_pivots = (
            buffer[: b * g * width].view(b * g, width)
            for buffer, width in zip(buffers, (d, m, m), strict=True)
        )
        torch.index_select(inverse, 0, columns[pivots], out=whole)
        torch.index_select(whole, 1, columns[:m], out=A_pivots)  # (b g, m)
        A_pivots.addmm_(K_rows[choice.pivots], Kt[:m, m:].mT, alpha=-1)
        L = T_inverse.mT @ A_pivots  # (b g, m)
        if len(candidates) < n:
            torch.mm(Wt[pivots], Wt[:m].mT, out=G_pivots)  # (b g, m)
            V = T_inverse.mT @ G_pivots.addmm_(S.mT, L, alpha=-1)  # (b g, m)
            b = _verified_steps(A_diagonal, G_diagonal, L, V, choice.costs, candidates)
        chosen, pivots = candidates[choice.picks[:b]], pivots[: b * g]
        T, L = T[: b * g, : b * g], L[: b * g]
        U = T_inverse[: b * g, : b * g].mT @ Wt[pivots]  # (b g, r)
        L[:, pivots] = T
        Wt[:m].addmm_(L.mT, U, alpha=-1)
        A_diagonal -= _gram_steps(L, L, b, g).sum(0)
        Kt[:m, m - b * g : m] = L.flip(0).mT

        # Groups removed go behind the ones left, the first one last; what stood there fills the holes.
        source, target = _moves(chosen, n)
        A_diagonal[target] = A_diagonal[source]
        source, target = _columns_of(source, g), _columns_of(target, g)
        columns[target] = columns[source]
        Wt[target] = Wt[source]
        Kt[target, m - b * g :] = Kt[source, m - b * g :]
        Wt[m - b * g : m] = U.flip(0)
        n -= b
        A_diagonal = A_diagonal[:n]
        if progress is not None:
            progress(d // g - n)

    return Elimination(columns[::g].flip(0) // g, Kt.mT, Wt.mT)


class _Choice(NamedTuple):
    picks: torch.Tensor  # (b,) indices into the candidates, in the order of their removal
    pivots: torch.Tensor  # (b g,) indices of their rows among the candidates' rows
    costs: torch.Tensor  # (b,) what each removal costs
    l: torch.Tensor  # (b g, b g) rows l at the pivots
    v: torch.Tensor  # (b g, b g) rows v at the pivots

    @classmethod
    def of(cls, picks: list[int], costs: list[float], steps: torch.Tensor, g: int) -> "_Choice":
        """Cut the rows [l v], (b g, 2 c g), down to the pivots."""
        chosen = torch.tensor(picks, device=steps.device)
        pivots = (chosen[:, None] * g + torch.arange(g, device=steps.device)).flatten()
        l, v = (half.index_select(1, pivots) for half in steps.tensor_split(2, dim=1))
        return cls(chosen, pivots, steps.new_tensor(costs), l, v)


def _choose(A: torch.Tensor, G: torch.Tensor, count: int, g: int) -> _Choice:
    """Run the elimination among the candidates alone, `count` times; A and G (c g, c g) are used up."""
    return _choose_columns(A, G, count) if g == 1 else _choose_groups(A, G, count, g)


def _choose_columns(A: torch.Tensor, G: torch.Tensor, count: int) -> _Choice:
    """Choose for groups of one column.

    This loop runs thousands of times on small matrices, so it counts operations: [A G] is one matrix M, and
    the update A − lᵀl, G − lᵀv − vᵀl one product, M − [l; v]ᵀ [[l v], [0 l]].
    """
    size = len(A)
    M = torch.cat([A, G], dim=1)  # (c, 2 c)
    A_diagonal, G_diagonal = (half.diagonal() for half in M.tensor_split(2, dim=1))  # views (c,)
    rows, A_at, G_at = M.unbind(), A_diagonal.unbind(), G_diagonal.unbind()  # indexing once is cheaper
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
    return _Choice.of(picks, costs, steps, 1)


def _choose_groups(A: torch.Tensor, G: torch.Tensor, count: int, g: int) -> _Choice:
    """Choose for groups of g columns."""
    size = len(A)
    A_diagonal, G_diagonal = diagonal_blocks(A, g), diagonal_blocks(G, g)  # views (c, g, g)
    identity = _identity(g, A)
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
    return _Choice.of(picks, costs, steps, g)


def _verified_steps(
    A_diagonal: torch.Tensor,
    G_diagonal: torch.Tensor,
    L: torch.Tensor,
    V: torch.Tensor,
    costs: torch.Tensor,
    candidates: torch.Tensor,
) -> int:
    """How many of the steps chosen were the cheapest of all groups, not only of the candidates."""
    g, b = A_diagonal.shape[-1], len(costs)
    # Before the first step the candidates are the cheapest by definition; before step s, s have acted.
    A_then = _gram_steps(L, L, b, g)[:-1].cumsum_(0).neg_().add_(A_diagonal)  # (b - 1, n, g, g)
    cross = _gram_steps(V, L, b, g)[:-1].cumsum_(0)
    G_then = (cross + cross.mT).neg_().add_(G_diagonal)
    A_then[:, candidates] = _identity(g, L)  # regular, also where removed
    others = removal_costs(A_then, G_then)  # (b - 1, n)
    others[:, candidates] = torch.inf
    overtaken = (others.amin(1) < costs[1:]).nonzero()
    return int(overtaken[0]) + 1 if len(overtaken) else b


def removal_costs(A_diagonal: torch.Tensor, G_diagonal: torch.Tensor) -> torch.Tensor:
    """tr(A_SS⁻¹ G_SS) for blocks (..., g, g)."""
    if A_diagonal.shape[-1] == 1:
        return (G_diagonal / A_diagonal)[..., 0, 0]
    root, failed = torch.linalg.cholesky_ex(A_diagonal)
    if failed.any():
        raise NonPositivePivot
    return torch.cholesky_solve(G_diagonal, root).diagonal(dim1=-2, dim2=-1).sum(-1)


def _gram_steps(X: torch.Tensor, Y: torch.Tensor, b: int, g: int) -> torch.Tensor:
    """Diagonal blocks (b, n, g, g) of XᵀY for each of b steps of g rows; X and Y (b g, n g)."""
    if g == 1:
        return (X * Y)[:, :, None, None]
    X, Y = (rows.view(b, g, -1, g).transpose(1, 2) for rows in (X, Y))  # (b, n, g rows, g columns)
    return X.mT @ Y


def diagonal_blocks(matrix: torch.Tensor, g: int) -> torch.Tensor:
    """View (n, g, g) of the diagonal blocks of an (n g, n g) matrix."""
    n = matrix.shape[0] // g
    return matrix.view(n, g, n, g).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def gram_blocks(Wt: torch.Tensor, g: int) -> torch.Tensor:
    """Diagonal blocks (n, g, g) of WᵀW for Wt (n g, r)."""
    if g == 1:
        norms: torch.Tensor = torch.linalg.vector_norm(Wt, dim=1)
        return norms.square_()[:, None, None]
    groups = Wt.view(-1, g, Wt.shape[1])
    return groups @ groups.mT


def _columns_of(groups: torch.Tensor, g: int) -> torch.Tensor:
    """Positions of the columns of groups (n,) -> (n g,), from last to first in each group.

    Within a group the last column goes first, since K is to have it lowest.
    """
    return (groups[:, None] * g + torch.arange(g - 1, -1, -1, device=groups.device)).flatten()


def _moves(chosen: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(source, target) group positions that bring the chosen ones behind the other n - b, the first last."""
    b = len(chosen)
    source = torch.arange(n, device=chosen.device)
    staying = torch.ones(n, dtype=torch.bool, device=chosen.device)
    staying[chosen] = False
    holes = chosen[chosen < n - b]
    source[holes] = source[n - b :][staying[n - b :]]
    source[n - b :] = chosen.flip(0)
    target = torch.cat([holes, torch.arange(n - b, n, device=chosen.device)])
    return source[target], target


def _upper_blocks(matrix: torch.Tensor, g: int) -> torch.Tensor:
    """A square matrix without its blocks (g, g) below the diagonal ones."""
    n = len(matrix) // g
    kept = torch.ones(n, n, dtype=torch.bool, device=matrix.device).triu()
    return matrix * kept.repeat_interleave(g, 0).repeat_interleave(g, 1)


def _identity(size: int, like: torch.Tensor) -> torch.Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)

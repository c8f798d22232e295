"""Structured OBS elimination, blocked: the order of the paper's Algorithm 1 at matrix-product speed.

Symbols: W (r, d) weights, A (d, d) inverse of the damped Hessian, G = WᵀW. Removing a group S of columns with
A_SS = RᵀR turns, with l = R⁻ᵀ A_S, u = R⁻ᵀ W_Sᵀ and v = R⁻ᵀ G_S − ½ (R⁻ᵀ G_SS R⁻¹) l,

    A into A − lᵀl,    W into W − uᵀl,    G into G − vᵀl − lᵀv,    at a cost of tr(A_SS⁻¹ G_SS).

Algorithm 1 does this to all of A and W for every group: memory-bound, and O(d² + r d) for a single column. This
differs from it in four ways:

1. Candidates. For some 96 columns at a time, only the rows of A and G of the cheapest groups are brought up to
   date. The next removals are chosen among these, on matrices small enough to stay in cache.
2. Verification. The rows l, v of the removals chosen are then completed for all columns by two triangular solves.
   They yield the cost of every other group at every step: where one of those was cheaper than the one chosen, the
   block is cut short there. So the choice is exact, and only its speed depends on the candidates.
3. A is never rewritten: its current rows are A − KᵀK with K the rows l so far, one product per block of the
   candidates. W is updated, once per block; it has fewer rows than A.
4. Columns move: groups removed go to the end, the first one last, and what is left shrinks for real.

In that arrangement K is lower triangular and K A⁻¹ Kᵀ = I: it is the inverse of the Cholesky factor of the damped
Hessian, so that the weights and errors of all levels come out as a by-product (see `Trace`). The rows u are those
of Yᵀ for Y = W K⁻¹.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

# Columns removed per block, and the surplus of candidates. Measured at 768x3072 on one thread: 64 and 128 are
# within 5 %; with a surplus of 1.1 blocks are often cut short.
BLOCK_COLUMNS = 96
SURPLUS = 1.35


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
        inverse: (d, d) float64, the inverse of the damped Hessian; read only.
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
    surplus = min(n, round(SURPLUS * block) + max(1, 8 // g))
    buffers = inverse.new_empty(3, surplus * g * d)  # fresh memory costs page faults, so it is taken once

    while n:
        m = n * g
        G_diagonal = gram_blocks(Wt[:m], g)  # (n, g, g)
        candidates = (
            removal_costs(A_diagonal, G_diagonal).topk(min(surplus, n), largest=False).indices
        )  # (c,)
        rows = _columns_of(candidates, g)  # (c g,) positions
        whole, A_rows, G_rows = (
            buffer[: len(rows) * width].view(len(rows), width)
            for buffer, width in zip(buffers, (d, m, m), strict=True)
        )
        torch.index_select(inverse, 0, columns[rows], out=whole)
        torch.index_select(whole, 1, columns[:m], out=A_rows)  # (c g, m)
        A_rows.addmm_(Kt[rows, m:], Kt[:m, m:].mT, alpha=-1)
        torch.mm(Wt[rows], Wt[:m].mT, out=G_rows)  # (c g, m)

        choice = _choose(A_rows.index_select(1, rows), G_rows.index_select(1, rows), min(block, n), g)
        T, S = choice.l.triu(), choice.v.triu()  # (b g, b g): what is zero in theory is made so
        L = torch.linalg.solve_triangular(T.mT, A_rows[choice.pivots], upper=False)  # (b g, m)
        b = len(choice.picks)
        if len(candidates) < n:
            V = torch.linalg.solve_triangular(T.mT, G_rows[choice.pivots] - S.mT @ L, upper=False)  # (b g, m)
            b = _verified_steps(A_diagonal, G_diagonal, L, V, choice.costs, candidates)
        chosen, T, L = candidates[choice.picks[:b]], T[: b * g, : b * g], L[: b * g]
        pivots = _columns_of(chosen, g)  # (b g,) positions
        U = torch.linalg.solve_triangular(T.mT, Wt[pivots], upper=False)  # (b g, r)
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


def _choose(A: torch.Tensor, G: torch.Tensor, count: int, g: int) -> _Choice:
    """Run the elimination among the candidates alone, `count` times; A and G are (c g, c g)."""
    size = A.shape[0]
    M = torch.cat([A, G], dim=1)  # (c g, 2 c g)
    A_diagonal, G_diagonal = (diagonal_blocks(half, g) for half in M.tensor_split(2, dim=1))  # views
    steps = A.new_empty(count * g, 2 * size)  # rows [l v]
    X = A.new_zeros(2 * g, 2 * size)  # [[l v], [0 l]]: A − lᵀl and G − lᵀv − vᵀl are one product away
    identity = torch.eye(g, dtype=A.dtype, device=A.device)
    prohibitive = 1e300 * identity
    picks, costs = [], []
    for step in range(count):
        cost = removal_costs(A_diagonal, G_diagonal)
        pick = int(cost.argmin())
        picks.append(pick)
        costs.append(float(cost[pick]))
        lv = X[:g]
        _rows_of_removal(M[pick * g : (pick + 1) * g], pick, lv)
        X[g:, size:] = X[:g, :size]
        M.addmm_(lv.view(g, 2, size).permute(2, 1, 0).reshape(size, 2 * g), X, alpha=-1)
        steps[step * g : (step + 1) * g] = lv
        A_diagonal[pick] = identity
        G_diagonal[pick] = prohibitive  # never chosen again
    chosen = torch.tensor(picks, device=A.device)
    pivots = (chosen[:, None] * g + torch.arange(g, device=A.device)).flatten()
    l, v = (half.index_select(1, pivots) for half in steps.tensor_split(2, dim=1))
    return _Choice(chosen, pivots, torch.tensor(costs, dtype=A.dtype, device=A.device), l, v)


def _rows_of_removal(rows: torch.Tensor, pick: int, lv: torch.Tensor) -> None:
    """Write [l v] (g, 2 c g) for a group with rows [A_S G_S] (g, 2 c g) into `lv`."""
    g, size = lv.shape[0], lv.shape[1] // 2
    l, v = lv[:, :size], lv[:, size:]
    if g == 1:  # the loop over single columns runs thousands of times: scalars, and few operations
        pivot = float(rows[0, pick])
        if not pivot > 0:
            raise NonPositivePivot
        torch.mul(rows, pivot**-0.5, out=lv)
        v.add_(l, alpha=-float(rows[0, size + pick]) / (2 * pivot))
        return
    group = slice(pick * g, (pick + 1) * g)
    root, failed = torch.linalg.cholesky_ex(rows[:, group])  # Rᵀ (g, g)
    if failed:
        raise NonPositivePivot
    lv[:] = torch.linalg.solve_triangular(root, rows, upper=False)
    half = torch.linalg.solve_triangular(root.mT, v[:, group], upper=True, left=False).mul_(0.5)  # (g, g)
    v.addmm_(half, l, alpha=-1)


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
    # Before the first step the candidates are the cheapest by definition; before step s, s removals have acted.
    A_then = _gram_steps(L, L, b, g)[:-1].cumsum_(0).neg_().add_(A_diagonal)  # (b - 1, n, g, g)
    cross = _gram_steps(V, L, b, g)[:-1].cumsum_(0)
    G_then = (cross + cross.mT).neg_().add_(G_diagonal)
    A_then[:, candidates] = torch.eye(g, dtype=L.dtype, device=L.device)  # regular, also where removed
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
        return torch.linalg.vector_norm(Wt, dim=1).square_()[:, None, None]
    groups = Wt.view(-1, g, Wt.shape[1])
    return groups @ groups.mT


def _columns_of(groups: torch.Tensor, g: int) -> torch.Tensor:
    """Positions of the columns of groups (n,) -> (n g,), from last to first in each group.

    Within a group the last column goes first, since K is to have it lowest.
    """
    return (groups[:, None] * g + torch.arange(g - 1, -1, -1, device=groups.device)).flatten()


def _moves(chosen: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(source, target) group positions that bring the chosen ones behind the other n - b, the first one last."""
    b = len(chosen)
    source = torch.arange(n, device=chosen.device)
    staying = torch.ones(n, dtype=torch.bool, device=chosen.device)
    staying[chosen] = False
    holes = chosen[chosen < n - b]
    source[holes] = source[n - b :][staying[n - b :]]
    source[n - b :] = chosen.flip(0)
    target = torch.cat([holes, torch.arange(n - b, n, device=chosen.device)])
    return source[target], target

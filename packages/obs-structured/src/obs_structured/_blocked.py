"""Blocked structured OBS elimination: the removal order of the paper's Algorithm 1 at matrix-product speed.

Symbols: W (r, d) is the weight, A (d, d) the inverse of the damped Hessian, and G = WᵀW. For a group S of
columns, A_S and G_S are the rows of S in A and G, and W_S are the columns of S in W. With A_SS = R Rᵀ, let
l = R⁻¹ A_S, u = R⁻¹ W_Sᵀ and v = R⁻¹ G_S − ½ (R⁻¹ G_SS R⁻ᵀ) l. Removing the group costs tr(A_SS⁻¹ G_SS) and
replaces

    A by A − lᵀl,    W by W − uᵀl,    G by G − vᵀl − lᵀv.

Algorithm 1 applies this to all of A and W for every group, which is limited by memory bandwidth. This
implementation differs in four ways:

1. Candidates. Groups are removed in blocks of about 96 columns. For each block, A and G are computed only for
   the cheapest groups, the candidates, and the next removals are chosen among them (`_candidates.py`).
2. Verification. The rows l and v of the chosen removals are then computed for all columns, which gives the
   cost of every other group before every step. If another group was cheaper than the chosen one, the block is
   cut short at that step. The choice is therefore exact; the candidates affect only the speed.
3. A is never overwritten. Its current value is A − KᵀK, where K holds the rows l computed so far, and one
   product per block gives the rows that are needed. W, which has fewer rows, is updated once per block.
4. Columns are rearranged. Removed groups move to the end, the first one to the last place, so that the
   matrices shrink as groups are removed.

In this arrangement K is lower triangular and K A⁻¹ Kᵀ = I. K is therefore the inverse of the Cholesky factor
of the damped Hessian, and the weights and errors of all levels follow from it (see `Trace`). The rows u form
Yᵀ, where Y = W K⁻¹.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from obs_structured._candidates import Choice, choose
from obs_structured._costs import (
    Elimination,
    diagonal_blocks,
    gram_blocks,
    gram_blocks_by_step,
    removal_costs,
)
from obs_structured._groups import WIDE, eliminate_groups

BLOCK_COLUMNS = 96  # columns removed per block
SURPLUS, SPARE_COLUMNS = 1.4, 8  # candidate columns per block: SURPLUS * BLOCK_COLUMNS + SPARE_COLUMNS


def eliminate(
    weight: torch.Tensor,
    inverse: torch.Tensor,
    group_size: int,
    progress: Callable[[int], None] | None = None,
) -> Elimination:
    """Remove all groups of columns one at a time, always the one with the least cost.

    Args:
        weight: W, (r, d) float64. Squares of its values must neither overflow nor underflow.
        inverse: A, (d, d) float64, the inverse of the damped Hessian. It is not modified. Squares and
            reciprocals of its values must neither overflow nor underflow.
        group_size: g, a divisor of d.
        progress: called after every block with the number of groups removed so far.

    Raises:
        NonPositivePivot: if a pivot is not positive.
    """
    if group_size >= WIDE:
        return eliminate_groups(weight, inverse, group_size, progress)
    state = _State(weight, inverse, group_size)
    groups = state.remaining
    while state.remaining:
        proposal = state.propose()
        L = state.rows_of_l(proposal)
        steps = len(proposal.choice.costs)
        if len(proposal.candidates) < state.remaining:
            V = state.rows_of_v(proposal, L)
            steps = _verified_steps(
                state.A_diagonal, proposal.G_diagonal, L, V, proposal.choice.costs, proposal.candidates
            )
        state.remove(proposal, L, steps)
        if progress is not None:
            progress(groups - state.remaining)
    return state.result()


class _Proposal(NamedTuple):
    """Removals proposed for one block: b of the c candidates among n groups."""

    candidates: torch.Tensor  # (c,) places of the candidate groups
    G_diagonal: torch.Tensor  # (n, g, g): diagonal blocks of the current G
    choice: Choice
    pivots: torch.Tensor  # (b g,) positions of the chosen groups' columns
    T: torch.Tensor  # (b g, b g): rows l at the pivots, upper triangular
    T_inverse: torch.Tensor  # (b g, b g)


class _State:
    """Elimination in progress.

    A position is a column's current index, and a place is a group's. Remaining groups occupy the first places
    and removed groups the last ones, in reverse order of removal.
    """

    def __init__(self, weight: torch.Tensor, inverse: torch.Tensor, g: int) -> None:
        d = inverse.shape[0]
        self.g = g
        self.remaining = d // g  # number of groups
        self.A_diagonal = diagonal_blocks(inverse, g).clone()  # (n, g, g): blocks of the current A
        self._inverse = inverse  # (d, d): A before the first removal, by column
        self._columns = torch.arange(d, device=inverse.device)  # (d,): column at each position
        # (d, r): current Wᵀ at the remaining positions, Yᵀ at the removed ones.
        self._Wt = weight.mT.clone(memory_format=torch.contiguous_format)
        self._Kt = torch.zeros_like(inverse)  # (d, d): Kᵀ, filled from the right
        self._block = max(1, BLOCK_COLUMNS // g)  # groups removed per block
        self._candidate_count = round(SURPLUS * self._block) + max(1, SPARE_COLUMNS // g)
        # Allocated once: every new allocation of this size would cost page faults.
        self._buffers = inverse.new_empty(3, min(self._block, self.remaining) * g * d)

    @property
    def _width(self) -> int:
        """Number of remaining columns, m."""
        return self.remaining * self.g

    def propose(self) -> _Proposal:
        """Choose the next removals among the cheapest groups."""
        g, m = self.g, self._width
        G_diagonal = gram_blocks(self._Wt[:m], g)  # (n, g, g)
        costs = removal_costs(self.A_diagonal, G_diagonal)  # (n,)
        candidates = costs.topk(min(self._candidate_count, self.remaining), largest=False).indices  # (c,)
        rows = _positions_of(candidates, g)  # (c g,)
        columns = self._columns[rows]
        K_rows, W_rows = self._Kt[rows, m:], self._Wt[rows]  # (c g, d - m), (c g, r)
        A = self._inverse[columns].index_select(1, columns).addmm_(K_rows, K_rows.mT, alpha=-1)  # (c g, c g)
        choice = choose(A, W_rows @ W_rows.mT, min(self._block, self.remaining), g)
        T = choice.l.triu()  # exact zeros where rounding left small values
        T_inverse = torch.linalg.solve_triangular(T, _identity(len(T), T), upper=True)
        return _Proposal(candidates, G_diagonal, choice, rows[choice.pivots], T, T_inverse)

    def rows_of_l(self, proposal: _Proposal) -> torch.Tensor:
        """Compute the rows l of the proposed removals for all remaining columns, (b g, m)."""
        m, pivots = self._width, proposal.pivots
        rows, A_rows = self._buffer(0, len(pivots), len(self._columns)), self._buffer(1, len(pivots), m)
        torch.index_select(self._inverse, 0, self._columns[pivots], out=rows)  # (b g, d)
        torch.index_select(rows, 1, self._columns[:m], out=A_rows)  # (b g, m)
        A_rows.addmm_(self._Kt[pivots, m:], self._Kt[:m, m:].mT, alpha=-1)
        return proposal.T_inverse.mT @ A_rows

    def rows_of_v(self, proposal: _Proposal, L: torch.Tensor) -> torch.Tensor:
        """Compute the rows v of the proposed removals for all remaining columns, (b g, m)."""
        m, pivots = self._width, proposal.pivots
        V_pivots = _upper_blocks(proposal.choice.v, self.g)  # exact zeros where rounding left small values
        G_rows = self._buffer(2, len(pivots), m)
        torch.mm(self._Wt[pivots], self._Wt[:m].mT, out=G_rows)  # (b g, m)
        return proposal.T_inverse.mT @ G_rows.addmm_(V_pivots.mT, L, alpha=-1)

    def remove(self, proposal: _Proposal, L: torch.Tensor, steps: int) -> None:
        """Carry out the first `steps` of the proposed removals; overwrites the rows l, (b g, m)."""
        g, m = self.g, self._width
        width = steps * g  # columns removed
        pivots, L = proposal.pivots[:width], L[:width]
        U = proposal.T_inverse[:width, :width].mT @ self._Wt[pivots]  # (width, r)
        L[:, pivots] = proposal.T[:width, :width]
        self._Wt[:m].addmm_(L.mT, U, alpha=-1)
        self.A_diagonal -= gram_blocks_by_step(L, L, steps, g).sum(0)
        self._Kt[:m, m - width : m] = L.flip(0).mT
        self._move_to_end(proposal.candidates[proposal.choice.picks[:steps]])
        self._Wt[m - width : m] = U.flip(0)
        self.remaining -= steps
        self.A_diagonal = self.A_diagonal[: self.remaining]

    def result(self) -> Elimination:
        """Return the result once all groups are removed."""
        order = self._columns[:: self.g].flip(0) // self.g
        return Elimination(order, self._Kt.mT, self._Wt.mT)

    def _move_to_end(self, chosen: torch.Tensor) -> None:
        """Move the chosen groups behind the other remaining ones, in reverse order."""
        start = self._width - len(chosen) * self.g  # columns of Kᵀ further left are still zero
        source, target = _moves(chosen, self.remaining)
        self.A_diagonal[target] = self.A_diagonal[source]
        source, target = _positions_of(source, self.g), _positions_of(target, self.g)
        self._columns[target] = self._columns[source]
        self._Wt[target] = self._Wt[source]
        self._Kt[target, start:] = self._Kt[source, start:]

    def _buffer(self, index: int, rows: int, columns: int) -> torch.Tensor:
        """Return buffer number `index` as a matrix (rows, columns)."""
        return self._buffers[index][: rows * columns].view(rows, columns)


def _verified_steps(
    A_diagonal: torch.Tensor,
    G_diagonal: torch.Tensor,
    L: torch.Tensor,
    V: torch.Tensor,
    costs: torch.Tensor,
    candidates: torch.Tensor,
) -> int:
    """Count the leading steps whose group was the cheapest of all groups, not only of the candidates.

    Args:
        A_diagonal: (n, g, g): diagonal blocks of A before the block.
        G_diagonal: (n, g, g): diagonal blocks of G before the block.
        L: (b g, n g): rows l of the chosen removals.
        V: (b g, n g): rows v of the chosen removals.
        costs: (b,): cost of each chosen removal.
        candidates: (c,): places of the candidate groups.
    """
    g, b = A_diagonal.shape[-1], len(costs)
    # The first step needs no check: before it, the candidates are the cheapest groups by definition.
    A_then = gram_blocks_by_step(L, L, b, g)[:-1].cumsum_(0).neg_().add_(A_diagonal)  # (b - 1, n, g, g)
    cross = gram_blocks_by_step(V, L, b, g)[:-1].cumsum_(0)
    G_then = (cross + cross.mT).neg_().add_(G_diagonal)
    A_then[:, candidates] = _identity(g, L)  # blocks of removed candidates would be singular
    others = removal_costs(A_then, G_then)  # (b - 1, n)
    others[:, candidates] = torch.inf
    overtaken = (others.amin(1) < costs[1:]).nonzero()
    return int(overtaken[0]) + 1 if len(overtaken) else b


def _positions_of(groups: torch.Tensor, g: int) -> torch.Tensor:
    """Return the positions (n g,) of the columns of groups at the given places (n,), last column first.

    The last column of a group is eliminated first, so that it comes last in K.
    """
    return (groups[:, None] * g + torch.arange(g - 1, -1, -1, device=groups.device)).flatten()


def _moves(chosen: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return source and target places that bring b chosen groups of n to the end, in reverse order.

    The other groups among the last b fill the places that the chosen ones leave.
    """
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
    """Return a square matrix with all blocks (g, g) below the block diagonal set to zero."""
    n = len(matrix) // g
    kept = torch.ones(n, n, dtype=torch.bool, device=matrix.device).triu()
    return matrix * kept.repeat_interleave(g, 0).repeat_interleave(g, 1)


def _identity(size: int, like: torch.Tensor) -> torch.Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)

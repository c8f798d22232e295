"""Solve one damped problem: choose an order of removal, and factorise the Hessian in that order."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from obs_structured._blocked import eliminate
from obs_structured._costs import NonPositivePivot, diagonal_blocks, gram_blocks, removal_costs
from obs_structured._factor import cholesky_, inverse_, invert_triangle_
from obs_structured._threads import threads_for
from obs_structured._trace import columns_of

METHODS = ("obs", "scores-once", "activation", "magnitude")


class Solution(NamedTuple):
    """Order of removal of d columns in n groups, with the matching factor of the Hessian."""

    order: torch.Tensor  # (n,) int64: the group removed at each step
    # (d, d): K, with columns in reverse order of removal; None if the kept columns are not updated.
    inverse_factor: torch.Tensor | None
    # (r, d): Y = W K⁻¹ for the weight passed to `solve`; None unless the elimination produced it.
    components: torch.Tensor | None


def solve(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int,
    damping: float,
    method: str,
    update: bool,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Choose the order in which groups are removed, and factorise the damped Hessian in that order.

    Args:
        weight: (r, d) float64.
        hessian: (d, d) float64, symmetric; d may be 0.
        group_size: columns per group.
        damping: λ, added to the diagonal of `hessian`.
        method: one of `METHODS`.
        update: whether the kept columns are updated, which needs the factor.
        progress: called now and then with the number of groups removed; used by method "obs" only.

    Raises:
        NonPositivePivot: if the damped Hessian is not positive definite to working precision.
    """
    K = Y = None
    if not len(hessian):
        return Solution(torch.zeros(0, dtype=torch.int64, device=hessian.device), hessian, weight)
    if method == "obs":
        inverse = _damped_inverse(hessian, damping)
        with threads_for(0):  # thousands of small operations between products of one block of columns
            order, K, Y = eliminate(weight, inverse, group_size, progress)
    else:
        order = _baseline_scores(weight, hessian, group_size, damping, method).argsort(stable=True)
    if not update:
        return Solution(order, None, None)
    positions = columns_of(order.flip(0), group_size)
    if K is None or not _is_accurate(K, hessian, damping, positions):
        K, Y = _factor_in_order(hessian, damping, positions), None
    return Solution(order, K, Y)


def _baseline_scores(
    weight: torch.Tensor, hessian: torch.Tensor, g: int, damping: float, method: str
) -> torch.Tensor:
    """Return the score (groups,) by which a baseline orders the groups, least first."""
    if method == "scores-once":
        inverse_blocks = diagonal_blocks(_damped_inverse(hessian, damping), g)
        return removal_costs(inverse_blocks, gram_blocks(weight.mT.contiguous(), g))
    scores = weight.square().sum(0)  # (d,)
    if method == "activation":
        scores = scores * hessian.diagonal()
    return scores.view(-1, g).sum(1)


def _damped_inverse(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    inverse = inverse_(_damped(hessian, damping))
    if inverse is None:
        raise NonPositivePivot
    return inverse


def _damped(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    damped = hessian.clone()
    damped.diagonal().add_(damping)
    return damped


def _factor_in_order(hessian: torch.Tensor, damping: float, positions: torch.Tensor) -> torch.Tensor:
    """Return K (d, d), the inverse of the Cholesky factor of the damped Hessian ordered by `positions`."""
    K = _damped(hessian[positions][:, positions], damping)
    if not cholesky_(K):
        raise NonPositivePivot
    invert_triangle_(K)
    return K.tril_()


def _is_accurate(K: torch.Tensor, hessian: torch.Tensor, damping: float, positions: torch.Tensor) -> bool:
    """Test K (H + λI) Kᵀ = I on one vector.

    The elimination starts from an explicit inverse, which loses digits if there is hardly any damping.
    Factorising the damped Hessian itself does not.
    """
    probe = torch.cos(torch.arange(len(K), dtype=K.dtype, device=K.device))  # (d,)
    x = torch.empty_like(probe)
    x[positions] = K.mT @ probe
    image = hessian @ x + damping * x
    return bool((K @ image[positions] - probe).abs().max() < 1e-9)

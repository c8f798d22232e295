"""Choose an order of removal for one damped problem, and factorise the Hessian in that order."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from obs_structured._blocked import NonPositivePivot, diagonal_blocks, eliminate, gram_blocks, removal_costs
from obs_structured._factor import cholesky_, inverse_, invert_triangle_
from obs_structured._trace import columns_of

METHODS = ("obs", "scores-once", "activation", "magnitude")


class Solution(NamedTuple):
    """An order of removal for d columns in n groups, and the factor that goes with it."""

    order: torch.Tensor  # (n,) int64
    inverse_factor: torch.Tensor | None  # K (d, d), columns in reverse order of removal; None without update
    components: (
        torch.Tensor | None
    )  # Y = W K⁻¹ (r, d) for the weight given, where it came out as a by-product


def solve(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int,
    damping: float,
    method: str,
    update: bool,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Order the groups of `weight` (r, d) under `hessian` + `damping` I, (d, d).

    Raises:
        NonPositivePivot: if the damped matrix is not positive definite to working precision.
    """
    K = Y = None
    if not len(hessian):
        return Solution(torch.zeros(0, dtype=torch.int64, device=hessian.device), hessian, weight)
    if method == "obs":
        order, K, Y = eliminate(weight, _damped_inverse(hessian, damping), group_size, progress)
    else:
        order = _costs_once(weight, hessian, group_size, damping, method).argsort(stable=True)
    if not update:
        return Solution(order, None, None)
    positions = columns_of(order.flip(0), group_size)
    if K is None or not _is_accurate(K, hessian, damping, positions):
        K, Y = _factor_in_order(hessian, damping, positions), None
    return Solution(order, K, Y)


def _costs_once(
    weight: torch.Tensor, hessian: torch.Tensor, g: int, damping: float, method: str
) -> torch.Tensor:
    """What a baseline believes that the removal of each group costs, (groups,)."""
    if method == "scores-once":
        inverse_blocks = diagonal_blocks(_damped_inverse(hessian, damping), g)
        return removal_costs(inverse_blocks, gram_blocks(weight.mT.contiguous(), g))
    importance = weight.square().sum(0)  # (d,)
    if method == "activation":
        importance = importance * hessian.diagonal()
    return importance.view(-1, g).sum(1)


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
    """K (d, d): inverse of the Cholesky factor of the damped matrix in the order of `positions`."""
    K = _damped(hessian[positions][:, positions], damping)
    if not cholesky_(K):
        raise NonPositivePivot
    invert_triangle_(K)
    return K.tril_()


def _is_accurate(K: torch.Tensor, hessian: torch.Tensor, damping: float, positions: torch.Tensor) -> bool:
    """Whether K (H + λI) Kᵀ = I on a probe.

    Elimination starts from an explicit inverse, which loses digits where there is next to no damping; a
    factor of the matrix itself does not.
    """
    probe = torch.cos(torch.arange(len(K), dtype=K.dtype, device=K.device))  # (d,)
    x = torch.empty_like(probe)
    x[positions] = K.mT @ probe
    image = hessian @ x + damping * x
    return bool((K @ image[positions] - probe).abs().max() < 1e-9)

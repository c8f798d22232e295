"""Prune one weight matrix in three steps: normalise the arguments, damp and solve, assemble the trace."""

from collections.abc import Callable

import torch

from obs_structured._assemble import assemble
from obs_structured._damp import damp
from obs_structured._normalise import normalise
from obs_structured._threads import product_of_block, threads_for
from obs_structured._trace import Trace


@torch.no_grad()
def prune(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    group_size: int = 1,
    mean: torch.Tensor | None = None,
    metric: torch.Tensor | None = None,
    damping: float | None = None,
    count: int | None = None,
    method: str = "obs",
    progress: Callable[[int, int], None] | None = None,
    *,
    update: bool = True,
) -> Trace:
    """Remove groups of columns from a weight matrix one at a time, changing its output as little as possible.

    This is structured Optimal Brain Surgeon (Algorithm 1 of ZipLM). Each step removes the group whose removal
    increases the squared output error least, given that the kept columns are updated to compensate for it.
    One call covers all levels, from no group removed to all of them.

    Args:
        weight: W, (out_features, in_features), any float dtype and device. Computations run in float64 on the
            same device, or on the CPU for mps. For a convolution, flatten the kernels: `weight.flatten(1)`.
        hessian: H, (in_features, in_features): 2 Σ x xᵀ / n over the n inputs x of the layer, see
            `Moments.hessian`.
        group_size: number of consecutive columns removed together; must divide in_features. Use 1 for single
            neurons, the head dimension for attention heads, and kernel_h * kernel_w for the input channels of
            a convolution.
        mean: μ, (in_features,): mean of the inputs. If given, the problem is centred (H − 2 μ μᵀ) and the
            bias absorbs the mean contribution of the removed columns: add `Trace.bias_shift` to it.
        metric: M, (out_features, out_features), symmetric positive semidefinite, or its diagonal,
            (out_features,). Groups are then chosen by the error tr(M ΔW H ΔWᵀ). The weights for a given set
            of kept columns do not depend on it.
        damping: value added to the diagonal of the (centred) Hessian, relative to the mean of that diagonal.
            From 0 to 1e6; default: 0.01, or 0.1 if `count` is below 2 * in_features. If the Hessian cannot be
            factorised, the damping is raised and a warning is logged.
        count: number of inputs that `hessian` was computed from; used for the default damping only.
        method: "obs", or one of the baselines "scores-once" (the OBS costs, not updated between removals),
            "activation" (‖W_j‖² H_jj, as in Wanda) and "magnitude" (‖W_j‖²).
        progress: called from time to time as progress(groups removed, groups in total).
        update: whether the kept columns are updated by least squares to compensate for the removed ones.

    Returns:
        A `Trace` with the order of removal and the weights and errors of every level.

    Raises:
        ValueError: if a tensor has non-finite values or a wrong shape; if `hessian` or `metric` is not
            symmetric positive semidefinite; if `weight`, `hessian`, `metric` or the output is all zero; if
            the largest absolute value of one of them is below 1e-290 or above 1e290; if the output at the
            mean overflows; if `group_size` does not divide in_features; if `damping` or `count` is out of
            range; if `method` is unknown; or if the Hessian cannot be factorised with any damping up to 1e6.
    """
    with threads_for(product_of_block(weight)):
        problem = normalise(weight, hessian, group_size, mean, metric, damping, count, method, update=update)
        damped = damp(problem, progress)
        return assemble(problem, damped)

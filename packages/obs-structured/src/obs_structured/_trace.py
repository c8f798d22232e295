"""Result of pruning one weight matrix: all levels, derived from one triangular factor.

All tensors here are arranged by position instead of by column: positions follow the reverse order of removal,
so the m columns kept at any level are the first m positions. Let K be the inverse of the Cholesky factor of
the damped Hessian H + λI in this arrangement, and Y = W K⁻¹. The least-squares weights on the first m
positions are Y[:, :m] K[:m, :m] for every m, and the change of the weights is ΔW = −Y[:, m:] K[m:]. Hence

    ‖ΔW X‖² ∝ tr(ΔW H ΔWᵀ) = Σ_{i,j ≥ m} (YᵀY)_ij C_ij    with C = K H Kᵀ = I − λ K Kᵀ,

and the errors of all levels are suffix sums of one elementwise product. Without the least-squares update, the
same holds with K = I: the weights are W[:, :m], Y = W and C = H.
"""

import os
from functools import cached_property
from pathlib import Path

import torch

from obs_structured import _checks, _files, _trace_files
from obs_structured._threads import product_of_block, threads_for

BLOCK = 192


class Trace:
    """All levels of one pruned weight matrix (r, d): the order of removal, the kept weights and the errors.

    Traces are created by `prune` and `Trace.load`. A level is identified by k, the number of groups removed,
    from 0 to `groups`.
    """

    def __init__(
        self,
        order: torch.Tensor,
        components: torch.Tensor,
        matrix: torch.Tensor,
        *,
        group_size: int,
        updated: bool,
        damping: float,
        absolute_damping: float,
        free_columns: int,
        mean: torch.Tensor | None,
        dtype: torch.dtype,
        scale: float,
        errors: torch.Tensor | None = None,
    ) -> None:
        self.order = order
        """Group removed at each step, int64 (groups,)."""
        self.group_size = group_size
        """Number of columns per group."""
        self.damping = damping
        """Damping that was used, relative to the mean diagonal of the Hessian."""
        self._components = components  # (r, d) float64: Y
        self._matrix = matrix  # (d, d) float64, lower triangle: K if updated, else H; both for H / scale
        self._updated = updated
        self._absolute_damping = absolute_damping  # λ
        self._free_columns = free_columns  # number of columns removed first, which are not part of K
        self._mean = mean  # (d,) float64: K μ, or None
        self._dtype = dtype
        self._scale = scale
        if errors is not None:
            self.errors = errors

    @property
    def groups(self) -> int:
        """Number of groups. The last level removes all of them."""
        return len(self.order)

    @cached_property
    def errors(self) -> torch.Tensor:
        """Relative error ‖Ŵ_k X − W X‖² / ‖W X‖² after k removals, float64 (groups + 1,).

        Damping affects the weights Ŵ_k, but is not counted as error. The first value is 0.
        """
        absolute, unit = self._plain_errors
        # Removing all groups loses the centred output; the mean output makes up the rest of ‖W X‖².
        return absolute / (absolute[-1] + (self._shift(0) / unit).square().sum())

    @cached_property
    def _plain_errors(self) -> tuple[torch.Tensor, float]:
        """‖ΔW_k X‖² / unit² of all levels, float64 (groups + 1,), and the unit, near the largest |Y|."""
        unit = _checks.power_of_two(self._components)
        Y = self._components / unit
        with threads_for(product_of_block(Y)):
            return self._quadratic_errors(Y, Y), unit

    def __repr__(self) -> str:
        rows, columns = self._components.shape
        half = self.errors[self.groups // 2]
        return (
            f"Trace({rows}x{columns}, {self.groups} groups of {self.group_size}, damping {self.damping:g}, "
            f"error {half:.3g} with half removed, {self.errors[-1]:.3g} with all)"
        )

    def kept(self, removed: int) -> torch.Tensor:
        """Return the groups kept after `removed` removals, sorted, int64 (groups − removed,)."""
        self._check_level(removed)
        return self.order[removed:].sort().values

    def columns(self, removed: int) -> torch.Tensor:
        """Return the columns kept after `removed` removals, sorted, int64 (kept columns,)."""
        return columns_of(self.kept(removed), self.group_size)

    def weight(self, removed: int) -> torch.Tensor:
        """Return the weights of the kept columns, in the order of `columns(removed)`.

        Returns:
            (r, kept columns) in the dtype of the original weight: the least-squares weights, or the original
            ones if `prune` was called with `update=False`.
        """
        width = self._width(removed)
        kept = self._components[:, :width]  # (r, m)
        if self._updated:
            # One product per block of columns, without the zeros that K has above its diagonal.
            blocks = [
                kept[:, start:] @ self._matrix[start:width, start : min(start + BLOCK, width)]
                for start in range(0, width, BLOCK)
            ]
            kept = torch.cat(blocks, dim=1) if blocks else kept
        return kept[:, self._columns_by_position()[:width].argsort()].to(self._dtype)

    def bias_shift(self, removed: int) -> torch.Tensor:
        """Return the vector to add to the bias, (r,) in the dtype of the weight; zeros without a mean."""
        return self._shift(self._width(removed)).to(self._dtype)

    def errors_under(self, metric: torch.Tensor) -> torch.Tensor:
        """Return the absolute errors of all levels under a metric on the outputs.

        Args:
            metric: M, (r, r), symmetric positive semidefinite, or its diagonal, (r,).

        Returns:
            float64 (groups + 1,): tr(M ΔW_k (H/2) ΔW_kᵀ), where H is centred if `prune` was given a mean.

        Raises:
            ValueError: if the metric has a wrong shape, is not finite or not symmetric, or if its diagonal
                form has negative values; or if the errors overflow.
        """
        Y = self._components
        MY = _checks.under_metric(metric, Y)
        if _checks.is_constant_diagonal(metric):
            plain, unit = self._plain_errors
            errors = plain * (float(metric[0]) * unit * unit)
        else:
            with threads_for(product_of_block(Y)):
                errors = self._quadratic_errors(Y, MY)
        if not errors.isfinite().all():
            raise ValueError("the errors under this metric overflow; divide the metric by a constant")
        return errors

    @torch.no_grad()
    def first_order(self, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        """Return the first-order change of a loss at every level, from its gradients at the outputs.

        All levels together take one product with K and one with Y, since g·ΔW_k x is a suffix sum of
        (Yᵀg) ∘ (K x).

        Args:
            inputs: x, (..., n, d): inputs of the layer.
            gradients: g, (..., n, r): gradients of the loss at the layer's outputs.

        Returns:
            float32 (..., groups + 1): Σ_n g·ΔW_k (x − μ), where μ is the mean given to `prune`, or 0.

        Raises:
            ValueError: if the shapes do not match the trace or each other, if a value is not finite, or if
                the products overflow.
        """
        rows, columns = self._components.shape
        _checks.finite_tensor("inputs", inputs, (*inputs.shape[:-1], columns))
        _checks.finite_tensor("gradients", gradients, (*inputs.shape[:-1], rows))
        x = inputs.detach().to(self._components.device, torch.float32)[..., self._columns_by_position()]
        if self._updated:
            x = x @ self._matrix.to(torch.float32).mT  # K x
        if self._mean is not None:
            x = x - self._mean.to(torch.float32)
        g = gradients.detach().to(x) @ self._components.to(torch.float32)  # Yᵀg
        lost = -(g * x).sum(-2)  # (..., d) by position
        lost = lost.flip(-1).cumsum(-1)[..., self.group_size - 1 :: self.group_size]
        if not lost.isfinite().all():
            raise ValueError("the first-order changes overflow float32; divide the gradients by a constant")
        return torch.cat([torch.zeros_like(lost[..., :1]), lost], dim=-1)

    def inner_products(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the sum of the products of a matrix and the kept weights, at every level.

        In positions, the sum over the first m rows of (YᵀM) ∘ K is that of all levels with m columns.

        Args:
            matrix: M, float64 (r, d), in the order of the columns.

        Returns:
            float64 (groups + 1,): Σ M[:, columns(k)] ∘ Ŵ_k, with weights in float64.
        """
        Y, M = self._components, matrix[:, self._columns_by_position()]
        by_position = ((Y.mT @ M) * self._matrix).sum(1) if self._updated else (Y * M).sum(0)  # (d,)
        kept = by_position.view(-1, self.group_size).sum(1).cumsum(0)  # (groups,): of 1, 2, … groups kept
        return torch.cat([kept.flip(0), kept.new_zeros(1)])

    def _quadratic_errors(self, Y: torch.Tensor, MY: torch.Tensor) -> torch.Tensor:
        """Return tr(M ΔW_k (H/2) ΔW_kᵀ) for all levels, (groups + 1,), given Y and M Y (r, d)."""
        # share[j]: what removing position j adds to the sum, from the pairs (i, j) with i >= j.
        share = Y.new_zeros(Y.shape[1])
        live = Y.shape[1] - self._free_columns
        for start in range(0, live, BLOCK):
            stop = min(start + BLOCK, live)
            pairs = Y[:, start:live].mT @ MY[:, start:stop]  # (live - start, b)
            pairs *= self._gram(start, stop, live)
            pairs[: stop - start].tril_()
            share[start:stop] = pairs.sum(0).mul_(2).sub_(pairs.diagonal())
        lost = share.flip(0).cumsum(0)[self.group_size - 1 :: self.group_size] * (self._scale / 2)
        return torch.cat([lost.new_zeros(1), lost.clamp_(min=0)])

    def _gram(self, start: int, stop: int, live: int) -> torch.Tensor:
        """Return columns start:stop of C from the diagonal down, (live − start, stop − start).

        I − λ K Kᵀ suffers from cancellation if the weight is concentrated on columns whose inputs are far
        smaller than those of most columns: with inputs 1e5 times smaller, the relative error is 1e-8.
        """
        if not self._updated:
            return self._matrix[start:live, start:stop]
        K = self._matrix
        gram = (K[start:live, :stop] @ K[start:stop, :stop].mT).mul_(-self._absolute_damping)
        gram.diagonal().add_(1)
        return gram

    def _shift(self, width: int) -> torch.Tensor:
        """Return −ΔW μ with the first `width` positions kept, float64 (r,)."""
        if self._mean is None:
            return self._components.new_zeros(self._components.shape[0])
        return self._components[:, width:] @ self._mean[width:]

    def _columns_by_position(self) -> torch.Tensor:
        """Return the column at each position, int64 (d,)."""
        return columns_of(self.order.flip(0), self.group_size)

    def _check_level(self, removed: int) -> None:
        if not 0 <= removed <= self.groups:
            raise ValueError(f"cannot remove {removed} groups; the number must be from 0 to {self.groups}")

    def _width(self, removed: int) -> int:
        """Return the number of columns kept after `removed` removals."""
        self._check_level(removed)
        return (self.groups - removed) * self.group_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a safetensors file.

        The file is written under a temporary name (`.<name>.<random>.ziplm-partial`) and then renamed, so a
        partly written file never appears under `path`.
        """
        tensors = {
            "order": self.order,
            "errors": self.errors,
            "components": self._components.contiguous(),
            "triangle": _files.pack_triangle(self._matrix),
        }
        if self._mean is not None:
            tensors["mean"] = self._mean
        scalars = {
            "group_size": self.group_size,
            "updated": self._updated,
            "damping": self.damping,
            "absolute_damping": self._absolute_damping,
            "free_columns": self._free_columns,
            "dtype": str(self._dtype).removeprefix("torch."),
            "scale": self._scale,
        }
        _files.write(Path(path), _trace_files.FORMAT, tensors, scalars)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> "Trace":
        """Read a trace that `save` has written.

        Args:
            path: file to read.
            device: device to put the tensors on.

        Raises:
            ValueError: if the file is not a trace, or is damaged.
            OSError: if the file does not exist or cannot be read.
        """
        arguments = _files.read(
            path, _trace_files.FORMAT, "trace", device, _trace_files.check, _trace_files.decode
        )
        return cls(**arguments)


def columns_of(groups: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return the columns (n g,) of groups (n,) with g consecutive columns each."""
    return (groups[:, None] * group_size + torch.arange(group_size, device=groups.device)).flatten()

"""Result of making the heads of one attention narrower: every width, and every number of heads at each.

The symbols are those of `_narrow.py`.
"""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from obs_structured import _checks, _files, _width_files
from obs_structured._projection import project_rows
from obs_structured._prune import prune
from obs_structured._threads import threads_for
from obs_structured._trace import Trace


class _Width(NamedTuple):
    """All heads at one width r: H r columns."""

    weight: torch.Tensor  # W_r (n, H r)
    change: torch.Tensor  # ΔW_r = W_r Bᵀ − Wo, (n, H d)
    trace: Trace  # of removing heads from W_r


class WidthTrace:
    """All widths and numbers of heads of one attention: kept heads, their bases, weights and errors.

    Width traces are created by `narrow_heads` and `WidthTrace.load`. A level is identified by the number of
    heads removed, from 0 to `heads`, and the width of each kept head, from 1 to `head_size`. A width is
    computed when it is first asked for.
    """

    def __init__(
        self,
        output: torch.Tensor,
        hessian: torch.Tensor,
        basis: torch.Tensor,
        *,
        mean: torch.Tensor | None,
        metric: torch.Tensor | None,
        absolute_damping: float,
        dtype: torch.dtype,
        scale: float,
        unit: float,
    ) -> None:
        self._output = output  # (n, H d) float64: Wo / unit
        self._hessian = hessian  # (H d, H d) float64: 2 C / scale
        self._basis = basis  # (H, d, d) float64: Q
        self._mean = mean  # (H d,) float64, or None
        self._metric = metric  # (n, n) or (n,) float64, or None
        self._absolute_damping = absolute_damping  # added to the diagonal of `hessian`
        self._dtype = dtype
        self._scale = scale
        self._unit = unit
        self._widths: dict[int, _Width] = {}
        self._plain: dict[int, torch.Tensor] = {}  # errors by width if all outputs count alike

    @property
    def heads(self) -> int:
        """Number of heads. The last level removes all of them."""
        return self._basis.shape[0]

    @property
    def head_size(self) -> int:
        """Width of the original heads."""
        return self._basis.shape[1]

    def __repr__(self) -> str:
        return (
            f"WidthTrace({len(self._output)}x{self._output.shape[1]}, {self.heads} heads of {self.head_size})"
        )

    def kept(self, removed: int, width: int) -> torch.Tensor:
        """Return the heads that are kept, sorted, int64 (heads − removed,)."""
        return self._at(width).trace.kept(removed)

    def order(self, width: int) -> torch.Tensor:
        """Return the heads in the order in which they are removed at this width, int64 (heads,)."""
        return self._at(width).trace.order.clone()

    def basis(self, width: int) -> torch.Tensor:
        """Return U, float64 (heads, head_size, width): the first columns of an orthogonal matrix per head."""
        self._check_width(width)
        return self._basis[:, :, :width].clone()

    def weight(self, removed: int, width: int) -> torch.Tensor:
        """Return the output matrix of the kept heads, (n, kept heads * width) in its original dtype."""
        return (self._at(width).trace.weight(removed) * self._unit).to(self._dtype)

    def project(self, rows: torch.Tensor, removed: int, width: int) -> torch.Tensor:
        """Return the rows of the value projection, or its bias, for the kept heads at this width.

        Args:
            rows: (heads * head_size, …), any float dtype: Wv, or bv.
            removed: number of heads removed.
            width: width of the kept heads.

        Returns:
            (kept heads * width, …) in the dtype of `rows`: U_hᵀ Wv_h for each kept head h.
        """
        kept = self.kept(removed, width)
        return project_rows(self._basis[kept, :, :width].mT, rows, self.heads, kept)

    def bias_shift(self, removed: int, width: int) -> torch.Tensor:
        """Return the vector to add to the output's bias, (n,) in its dtype; zeros without a mean."""
        if self._mean is None:
            return self._output.new_zeros(len(self._output)).to(self._dtype)
        kept = self.kept(removed, width)
        mean = self._mean.view(self.heads, self.head_size)[kept]  # (kept, d)
        narrow = (self._basis[kept, :, :width].mT @ mean[..., None]).flatten()  # (kept r,): Bᵀμ
        shift = self._output @ self._mean - self._at(width).trace.weight(removed) @ narrow
        return (shift * self._unit).to(self._dtype)

    def errors(self, width: int) -> torch.Tensor:
        """Return the relative error ‖Ŵ Uᵀz − Wo z‖² / ‖Wo z‖² after k removals, float64 (heads + 1,)."""
        total = (self._output @ self._hessian * self._output).sum() * (self._scale / 2)
        if self._mean is not None:
            total += (self._output @ self._mean).square().sum()
        return self._absolute_errors(width, None) / total

    def errors_under(self, metric: torch.Tensor, width: int) -> torch.Tensor:
        """Return the absolute errors of all numbers of heads at a width, under a metric on the outputs.

        Args:
            metric: M, (n, n), symmetric positive semidefinite, or its diagonal, (n,). It need not be the
                metric that `narrow_heads` was given.
            width: width of the kept heads.

        Returns:
            float64 (heads + 1,): tr(M ΔW C ΔWᵀ), in the units of `Trace.errors_under`.

        Raises:
            ValueError: as in `Trace.errors_under`.
        """
        errors = self._absolute_errors(width, metric) * self._unit * self._unit
        if not errors.isfinite().all():
            raise ValueError("the errors under this metric overflow; divide the metric by a constant")
        return errors

    def first_order(self, inputs: torch.Tensor, gradients: torch.Tensor, width: int) -> torch.Tensor:
        """Return the first-order change of a loss for all numbers of heads at a width.

        It is that of `Trace.first_order`, for heads that are also narrower.

        Args:
            inputs: z, (..., tokens, heads * head_size): inputs of the output matrix.
            gradients: g, (..., tokens, n): gradients of the loss at its outputs.
            width: width of the kept heads.

        Returns:
            float32 (..., heads + 1): Σ g·ΔW (z − μ) over tokens, where μ is the mean, or 0.

        Raises:
            ValueError: as in `Trace.first_order`.
        """
        rows, columns = self._output.shape
        _checks.finite_tensor("inputs", inputs, (*inputs.shape[:-1], columns))
        _checks.finite_tensor("gradients", gradients, (*inputs.shape[:-1], rows))
        _, change, trace = self._at(width)
        z = inputs.detach().to(self._output.device, torch.float32)
        if self._mean is not None:
            z = z - self._mean.to(z)
        g = gradients.detach().to(z)
        narrowing = (g * (z @ change.to(z).mT)).sum((-2, -1))  # (...): of all heads
        narrow = _times_basis(z.reshape(-1, columns), self._basis[:, :, :width].to(z))
        removing = trace.first_order(narrow.view(*z.shape[:-1], -1), g)  # (..., heads + 1)
        changes = (narrowing[..., None] + removing) * self._unit
        if not changes.isfinite().all():
            raise ValueError("the first-order changes overflow float32; divide the gradients by a constant")
        return changes

    def _absolute_errors(self, width: int, metric: torch.Tensor | None) -> torch.Tensor:
        """Return tr(M ΔW C ΔWᵀ) for ΔW in units of `_unit`, (heads + 1,)."""
        if metric is not None:
            _checks.under_metric(metric, self._output[:, :1])  # refuses metrics that are not valid
            if not _checks.is_constant_diagonal(metric):
                return self._errors_of(width, metric)
        self._check_width(width)
        if width not in self._plain:
            self._plain[width] = self._errors_of(width, self._output.new_ones(len(self._output)))
        return self._plain[width] * (1.0 if metric is None else float(metric[0]))

    def _errors_of(self, width: int, M: torch.Tensor) -> torch.Tensor:
        weight, change, trace = self._at(width)
        changed = _checks.under_metric(M, change) @ self._hessian  # (n, H d): M ΔW_r C
        narrowing = (changed * change).sum() / 2
        crossed = _times_basis(changed, self._basis[:, :, :width])  # (n, H r): M ΔW_r C B
        # ⟨M ΔW_r C B, ΔW_h⟩, where ΔW_h is the change of W_r by the removal of heads.
        cross = trace.inner_products(crossed) - (crossed * weight).sum()
        errors = narrowing + cross + trace.errors_under(M)
        return errors.clamp(min=0) * self._scale

    def _at(self, width: int) -> _Width:
        """Return a width, computed on first use."""
        self._check_width(width)
        if width not in self._widths:
            with torch.no_grad(), threads_for(2.0 * len(self._output) * len(self._hessian) ** 2):
                self._widths[width] = self._narrowed(width)
        return self._widths[width]

    def _narrowed(self, width: int) -> _Width:
        B = self._basis[:, :, :width]  # (H, d, r)
        CB = _times_basis(self._hessian, B)  # (H d, H r)
        narrow = _times_basis(CB.mT.contiguous(), B)  # (H r, H r): BᵀCB
        narrow = (narrow + narrow.mT) / 2
        weight = _times_basis(self._output, B)  # (n, H r): exact at full width
        if width < self.head_size:
            damped = narrow.clone()
            damped.diagonal().add_(self._absolute_damping)  # the columns of B are orthonormal
            weight = _fitted(self._output @ CB + self._absolute_damping * weight, damped)
        back = weight.view(len(weight), self.heads, width).transpose(0, 1) @ B.mT  # (H, n, d)
        change = back.transpose(0, 1).reshape(len(weight), -1) - self._output
        live = narrow.diagonal().view(self.heads, width)
        live = live[(live > 0).any(1)]
        relative = self._absolute_damping / float(live.mean())
        trace = prune(weight, narrow, width, metric=self._metric, damping=relative)
        return _Width(weight, change, trace)

    def _check_width(self, width: int) -> None:
        if type(width) is not int or not 1 <= width <= self.head_size:
            raise ValueError(f"the width is {width!r}, but must be an integer from 1 to {self.head_size}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a safetensors file; every width can be read from it. See `Trace.save`."""
        tensors = {
            "output": self._output.contiguous(),
            "triangle": _files.pack_triangle(self._hessian),
            "basis": self._basis.contiguous(),
        }
        tensors |= {"mean": self._mean} if self._mean is not None else {}
        tensors |= {"metric": self._metric.contiguous()} if self._metric is not None else {}
        scalars = {
            "absolute_damping": self._absolute_damping,
            "dtype": str(self._dtype).removeprefix("torch."),
            "scale": self._scale,
            "unit": self._unit,
        }
        _files.write(Path(path), _width_files.WIDTHS, tensors, scalars)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> "WidthTrace":
        """Read a trace that `save` has written; see `Trace.load`."""
        arguments = _files.read(
            path,
            _width_files.WIDTHS,
            "width trace",
            device,
            _width_files.check_widths,
            _width_files.decode_widths,
        )
        return cls(**arguments)


def _times_basis(matrix: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return the product (m, H r) of a matrix (m, H d) with blockdiag(B), for B (H, d, r)."""
    heads, size, width = B.shape
    blocks = matrix.view(len(matrix), heads, size).transpose(0, 1) @ B  # (H, m, r)
    return blocks.transpose(0, 1).reshape(len(matrix), heads * width)


def _fitted(target: torch.Tensor, damped: torch.Tensor) -> torch.Tensor:
    """Return target damped⁻¹ (n, m), with a pseudo-inverse if `damped` (m, m) is singular."""
    root, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        fitted: torch.Tensor = target @ torch.linalg.pinv(damped, hermitian=True)
        return fitted
    return torch.cholesky_solve(target.mT, root).mT

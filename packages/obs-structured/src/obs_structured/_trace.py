"""The result of pruning one matrix: all its levels, from one triangular factor.

Positions, not columns: everything here is arranged in reverse order of removal, so that the m columns kept at
any level are the first m positions. With K the inverse of the Cholesky factor of the damped Hessian H + λI in
that arrangement and Y = W K⁻¹, the least-squares weights on the first m positions are Y[:, :m] K[:m, :m],
whatever m, and what was lost is ΔW = −Y[:, m:] K[m:]. Hence

    ‖ΔW X‖² ∝ tr(ΔW H ΔWᵀ) = Σ_{i,j ≥ m} (YᵀY)_ij C_ij    with C = K H Kᵀ = I − λ K Kᵀ,

and all levels' errors are the suffix sums of one elementwise product. Without the least-squares update the
same holds with K = I: weights W[:, :m], Y = W, C = H.
"""

import json
import os
import uuid
from functools import cached_property
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from obs_structured import _checks

BLOCK = 192
FORMAT = "obs-structured trace 1"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}


class Trace:
    """All levels of one pruned weight matrix (r, d): which groups go in which order, and what is left.

    Made by `prune` or `Trace.load`. A level is counted by k, the number of groups removed, 0 to `groups`.
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
        """LongTensor (groups,): the group removed at each step."""
        self.group_size = group_size
        self.damping = damping
        """The relative damping that was used."""
        self._components = components  # (r, d) float64: Y
        self._matrix = matrix  # (d, d) float64, lower triangle: K if updated, else H; of H / scale
        self._updated = updated
        self._absolute_damping = absolute_damping  # λ
        self._free_columns = free_columns  # how many of the columns removed first have no part in H
        self._mean = mean  # (d,) float64: K μ, or None
        self._dtype = dtype
        self._scale = scale
        if errors is not None:
            self.errors = errors

    @property
    def groups(self) -> int:
        """How many groups there are; removing all of them is the last level."""
        return len(self.order)

    @cached_property
    def errors(self) -> torch.Tensor:
        """float64 (groups + 1,): ‖Ŵ_k X − W X‖² / ‖W X‖² after k removals, undamped; the first is 0."""
        absolute = self._quadratic_errors(self._components)
        # Removing everything loses the centred output; the mean output makes up the rest of ‖WX‖².
        return absolute / (absolute[-1] + self._shift(0).square().sum())

    def __repr__(self) -> str:
        rows, columns = self._components.shape
        half = self.errors[self.groups // 2]
        return (
            f"Trace({rows}x{columns}, {self.groups} groups of {self.group_size}, damping {self.damping:g}, "
            f"error {half:.3g} at half, {self.errors[-1]:.3g} at none)"
        )

    def kept(self, removed: int) -> torch.Tensor:
        """LongTensor (groups − k,): sorted ids of the groups left after k removals."""
        self._check_level(removed)
        return self.order[removed:].sort().values

    def columns(self, removed: int) -> torch.Tensor:
        """LongTensor (kept columns,): sorted ids of the columns left after k removals."""
        return columns_of(self.kept(removed), self.group_size)

    def weight(self, removed: int) -> torch.Tensor:
        """(r, kept columns) in the dtype of the weight: the best weights for `columns(k)`, in that order."""
        width = self._width(removed)
        kept = self._components[:, :width]  # (r, m)
        if self._updated:
            # One product for each block of columns; K is zero above its diagonal.
            blocks = [
                kept[:, start:] @ self._matrix[start:width, start : min(start + BLOCK, width)]
                for start in range(0, width, BLOCK)
            ]
            kept = torch.cat(blocks, dim=1) if blocks else kept
        return kept[:, columns_of(self.order.flip(0), self.group_size)[:width].argsort()].to(self._dtype)

    def bias_shift(self, removed: int) -> torch.Tensor:
        """(r,) in the dtype of the weight: what to add to the bias; zeros if no mean was given."""
        return self._shift(self._width(removed)).to(self._dtype)

    def errors_under(self, metric: torch.Tensor) -> torch.Tensor:
        """Absolute errors of all levels under a metric on the outputs.

        Args:
            metric: M, (r, r) symmetric positive semidefinite, or (r,) a diagonal.

        Returns:
            float64 (groups + 1,): tr(M ΔW_k (H/2) ΔW_kᵀ), H centred if a mean was given to `prune`.
        """
        Y = self._components
        rows = len(Y)
        _checks.finite_tensor("metric", metric, (rows, rows), (rows,))
        metric = metric.detach().to(Y)
        if metric.ndim == 1:
            _checks.semidefinite_spectrum("metric", float(metric.min()), float(metric.max()))
            return self._quadratic_errors(metric[:, None] * Y)
        metric = _checks.symmetrised("metric", metric)
        return self._quadratic_errors(metric @ Y)

    @torch.no_grad()
    def first_order(self, inputs: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
        """First-order change of a loss that each level makes, given the gradients at the outputs.

        One product with K and one with Y cover all levels: g·ΔW_k x is a suffix sum of (Yᵀg) ∘ (K x).

        Args:
            inputs: x, (..., n, d): vectors that the matrix multiplies.
            gradients: g, (..., n, r): of the loss, at the outputs.

        Returns:
            float32 (..., groups + 1): Σ_n g·ΔW_k (x − μ), with μ the mean given to `prune`, or 0.
        """
        rows, columns = self._components.shape
        _checks.finite_tensor("inputs", inputs, (*inputs.shape[:-1], columns))
        _checks.finite_tensor("gradients", gradients, (*inputs.shape[:-1], rows))
        positions = columns_of(self.order.flip(0), self.group_size)
        moved = inputs.detach().to(self._components.device, torch.float32)[..., positions]
        if self._updated:
            moved = moved @ self._matrix.to(torch.float32).mT
        if self._mean is not None:
            moved = moved - self._mean.to(torch.float32)
        felt = gradients.detach().to(moved) @ self._components.to(torch.float32)
        lost = -(felt * moved).sum(-2)  # (..., d) by position
        lost = lost.flip(-1).cumsum(-1)[..., self.group_size - 1 :: self.group_size]
        return torch.cat([torch.zeros_like(lost[..., :1]), lost], dim=-1)

    def _quadratic_errors(self, MY: torch.Tensor) -> torch.Tensor:
        """tr(M ΔW_k (H/2) ΔW_kᵀ) of all levels, (groups + 1,), given M Y (r, d)."""
        Y = self._components
        # share[j]: what position j adds to the sum over all pairs once it is removed, i.e. pairs (i >= j, j).
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
        """Columns start:stop of C from the diagonal down, (live − start, stop − start).

        I − λ K Kᵀ cancels where the weight lives on columns far smaller than the mean: by 1e-8 if 1e5 times.
        """
        if not self._updated:
            return self._matrix[start:live, start:stop]
        K = self._matrix
        gram = (K[start:live, :stop] @ K[start:stop, :stop].mT).mul_(-self._absolute_damping)
        gram.diagonal().add_(1)
        return gram

    def _shift(self, width: int) -> torch.Tensor:
        """(r,) float64: −ΔW μ with the first `width` positions kept."""
        if self._mean is None:
            return self._components.new_zeros(self._components.shape[0])
        return self._components[:, width:] @ self._mean[width:]

    def _check_level(self, removed: int) -> None:
        if not 0 <= removed <= self.groups:
            raise ValueError(f"k = {removed} groups to remove, but k must be from 0 to {self.groups}")

    def _width(self, removed: int) -> int:
        self._check_level(removed)
        return (self.groups - removed) * self.group_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as safetensors, under a temporary name first: no half-written file is ever seen."""
        path = Path(path)
        d = self._matrix.shape[0]
        tensors = {
            "order": self.order,
            "errors": self.errors,
            "components": self._components.contiguous(),
            "triangle": torch.cat([self._matrix[row, : row + 1] for row in range(d)]),  # packed by rows
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
        metadata = {"format": FORMAT, "scalars": json.dumps(scalars)}
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(safetensors.torch.save(tensors, metadata))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> "Trace":
        """Read a trace that `save` wrote.

        Raises:
            ValueError: if the file is not a trace, or damaged.
        """
        if Path(path).is_dir():
            raise ValueError(f"{os.fspath(path)} is a folder, not a trace")
        try:
            with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            raise ValueError(f"{os.fspath(path)} is not a trace: {error}") from None
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{os.fspath(path)} is not a trace: its format is {metadata.get('format')!r}, not {FORMAT!r}"
            )
        try:
            scalars = json.loads(metadata["scalars"])
            scalars["dtype"] = DTYPES[scalars["dtype"]]
            order, components = tensors["order"], tensors["components"]
            d = components.shape[1]
            if len(order) * scalars["group_size"] != d or not order.sort().values.equal(
                torch.arange(len(order), device=order.device)
            ):
                raise ValueError(f"its order does not cover {d} columns once")
            matrix = _unpacked(tensors.pop("triangle"), d)
            mean = tensors.pop("mean", None)
            return cls(**tensors, matrix=matrix, mean=mean, **scalars)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{os.fspath(path)} is a damaged trace: {error}") from None


def _unpacked(packed: torch.Tensor, d: int) -> torch.Tensor:
    """Lower triangular matrix (d, d) from its rows one after the other, (d (d + 1) / 2,)."""
    if packed.shape != (d * (d + 1) // 2,):
        raise ValueError(f"its triangle has {packed.numel()} values, not those of {d} columns")
    matrix = packed.new_zeros(d, d)
    for row in range(d):
        start = row * (row + 1) // 2
        matrix[row, : row + 1] = packed[start : start + row + 1]
    return matrix


def columns_of(groups: torch.Tensor, group_size: int) -> torch.Tensor:
    """Columns (n g,) of groups (n,) of g consecutive columns each."""
    return (groups[:, None] * group_size + torch.arange(group_size, device=groups.device)).flatten()

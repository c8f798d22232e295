"""The mean over rows of a row-wise divergence, without keeping anything of the size of its inputs.

Left to autograd, the difference (or both softmaxes) of every layer would be kept until the backward pass.
Here only the inputs are kept, which the models hold anyway; the backward pass computes a chunk of rows
again when it needs it. A chunk fits the processor's cache, so that costs less than writing it to memory
and reading it back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._checks import boolean_mask

# Elements of a chunk: half a megabyte of float32 stays in a core's cache; a quarter of it is slower, twice as
# much takes more memory and is no faster. An accelerator is better served by fewer and larger kernels.
_CPU_CHUNK, _OTHER_CHUNK = 2**17, 2**22


class Divergence(NamedTuple):
    """How far student rows (n, width) are from teacher rows (n, width), and its slope for the student."""

    value: Callable[[Tensor, Tensor], Tensor]  # -> (n,)
    gradient: Callable[[Tensor, Tensor], Tensor]  # -> (n, width), a new tensor


def _square(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).square_().mean(dim=-1)


def _square_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).mul_(2 / student.shape[-1])


MEAN_SQUARE = Divergence(_square, _square_gradient)


@dataclass(frozen=True)
class Rows:
    """Which rows count, in chunks: slices when all of them do, indices when some do not."""

    chunks: list[slice] | list[Tensor]
    count: int

    @classmethod
    def kept(cls, mask: Tensor | None, like: Tensor, what: str) -> "Rows":
        """The rows of a tensor like this one, (..., width), that a mask (...) keeps; without a mask, all."""
        *leading, width = like.shape
        total = math.prod(leading)
        size = max(1, (_CPU_CHUNK if like.device.type == "cpu" else _OTHER_CHUNK) // width)
        if mask is not None:
            indices = boolean_mask(mask, torch.Size(leading), what).flatten().nonzero().squeeze(1)  # (kept,)
            if len(indices) == 0:
                raise ValueError(
                    f"{what}: the mask leaves none of {total} tokens; drop batches that are all padding"
                )
            if len(indices) < total:
                return cls(list(torch.split(indices.to(like.device), size)), len(indices))
        return cls([slice(start, min(start + size, total)) for start in range(0, total, size)], total)


def mean_over_rows(student: Tensor, teacher: Tensor, rows: Rows, divergence: Divergence) -> Tensor:
    """Mean of `divergence` over `rows` of (..., width) tensors; a float32 scalar, or float64 if either is.

    The gradient flows to the student only, once: there is no second derivative. It is exactly zero in
    rows that do not count, whatever they hold.
    """
    mean: Tensor = _MeanOverRows.apply(student, teacher.detach(), rows, divergence)  # type: ignore[no-untyped-call]
    return mean


class _MeanOverRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, rows: Rows, divergence: Divergence) -> Tensor:
        ctx.rows, ctx.divergence = rows, divergence
        # Autograd refuses to save what was computed under torch.inference_mode, as many teachers are.
        ctx.teacher = teacher if teacher.is_inference() else None
        ctx.save_for_backward(student, *([] if teacher.is_inference() else [teacher]))
        dtype = _at_least_float32(student, teacher)
        total = torch.zeros((), dtype=dtype, device=student.device)
        for chunk in rows.chunks:
            total += divergence.value(_take(student, chunk, dtype), _take(teacher, chunk, dtype)).sum()
        return total / rows.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        student, *saved = ctx.saved_tensors
        teacher = saved[0] if saved else ctx.teacher
        dtype = _at_least_float32(student, teacher)
        scale = grad_output / ctx.rows.count
        *leading, width = student.shape
        total = math.prod(leading)
        make = student.new_empty if ctx.rows.count == total else student.new_zeros
        gradient = make((total, width))
        for chunk in ctx.rows.chunks:
            slope = ctx.divergence.gradient(_take(student, chunk, dtype), _take(teacher, chunk, dtype))
            part = slope.mul_(scale).to(student.dtype)
            if isinstance(chunk, slice):
                gradient[chunk] = part
            else:
                gradient.index_copy_(0, chunk, part)
        return gradient.view(student.shape), None, None, None


def _take(tensor: Tensor, chunk: slice | Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of a chunk, (n, width), of a tensor (..., width) in any memory layout."""
    *leading, width = tensor.shape
    if not tensor.is_contiguous():  # reshape would copy all of it
        if isinstance(chunk, slice):
            chunk = torch.arange(chunk.start, chunk.stop, device=tensor.device)
        return tensor[torch.unravel_index(chunk, leading)].to(dtype)
    rows = tensor.view(-1, width)
    # index_select: half the time of rows[chunk] for rows of 768
    return (rows[chunk] if isinstance(chunk, slice) else rows.index_select(0, chunk)).to(dtype)


def _at_least_float32(student: Tensor, teacher: Tensor) -> torch.dtype:
    """The dtype that a loss of these two is computed in."""
    return torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)

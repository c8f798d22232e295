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

Block = tuple[int | slice, ...]  # an index of the first dimensions


class Divergence(NamedTuple):
    """How far student rows (..., width) are from the teacher's, and its slope for the student."""

    value: Callable[[Tensor, Tensor], Tensor]  # -> (...)
    gradient: Callable[[Tensor, Tensor], Tensor]  # -> (..., width), a new tensor


def _square(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).square_().mean(dim=-1)


def _square_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).mul_(2 / student.shape[-1])


MEAN_SQUARE = Divergence(_square, _square_gradient)


@dataclass(frozen=True)
class Rows:
    """Which rows of (..., width) count, in chunks: blocks when all of them do, row numbers when some do not.

    A block is a view in any memory layout. Rows in one run from the first to the last would not be, after a
    transpose or a slice, and reshape would copy the whole tensor.
    """

    chunks: list[Block] | list[Tensor]
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
        return cls(_blocks(leading, size), total)


def _blocks(leading: list[int], size: int) -> list[Block]:
    """Blocks of at most `size` rows, or of one, that together cover a tensor (*leading, width)."""
    first, *others = leading
    inner = math.prod(others)
    if inner > size:
        return [(i, *block) for i in range(first) for block in _blocks(others, size)]
    step = size // inner
    return [(slice(i, i + step),) for i in range(0, first, step)]


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
        width = student.shape[-1]
        whole = ctx.rows.count * width == student.numel()
        make = torch.empty_like if whole else torch.zeros_like
        gradient = make(student, memory_format=torch.contiguous_format)
        for chunk in ctx.rows.chunks:
            slope = ctx.divergence.gradient(_take(student, chunk, dtype), _take(teacher, chunk, dtype))
            part = slope.mul_(scale).to(student.dtype)
            if isinstance(chunk, Tensor):
                gradient.view(-1, width).index_copy_(0, chunk, part)
            else:
                gradient[chunk] = part
        return gradient, None, None, None


def _take(tensor: Tensor, chunk: Block | Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of a chunk, (..., width), in the dtype that the loss is computed in."""
    if not isinstance(chunk, Tensor):
        return tensor[chunk].to(dtype)
    *leading, width = tensor.shape
    if tensor.is_contiguous():  # a fifth of the time that other indexing takes
        return tensor.view(-1, width).index_select(0, chunk).to(dtype)
    return tensor[torch.unravel_index(chunk, leading)].to(dtype)


def _at_least_float32(student: Tensor, teacher: Tensor) -> torch.dtype:
    """The dtype that a loss of these two is computed in."""
    return torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)

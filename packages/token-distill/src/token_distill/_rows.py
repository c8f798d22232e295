"""Mean of a divergence over rows, computed chunk by chunk without temporaries as large as the inputs.

Plain autograd would keep the difference (or both softmaxes) of every layer until the backward pass. This
implementation saves only the inputs, which the models hold anyway, and recomputes each chunk of rows in the
backward pass. A chunk fits the processor's cache, so recomputing it is cheaper than writing it to memory and
reading it back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._checks import boolean_mask

# Number of elements in a chunk. On a CPU, half a megabyte of float32 stays in a core's cache: a quarter of
# that was slower, and twice as much took more memory without being faster. Accelerators prefer fewer, larger
# kernels.
_CPU_CHUNK, _OTHER_CHUNK = 2**17, 2**22

Block = tuple[int | slice, ...]  # an index into the leading dimensions


class Divergence(NamedTuple):
    """A distance between student and teacher rows (..., width), and its gradient for the student."""

    value: Callable[[Tensor, Tensor], Tensor]  # -> (...)
    gradient: Callable[[Tensor, Tensor], Tensor]  # -> (..., width), a new tensor


def _square(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).square_().mean(dim=-1)


def _square_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).mul_(2 / student.shape[-1])


MEAN_SQUARE = Divergence(_square, _square_gradient)


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor (..., width) that a mask keeps, split into chunks.

    If all rows are kept, chunks are blocks of the leading dimensions; otherwise they are row numbers. A block
    is a view in any memory layout. Numbering all rows instead would require a reshape, which copies the whole
    tensor if it was transposed or sliced.

    Attributes:
        chunks: blocks, or int64 tensors of row numbers.
        count: total number of rows kept.
    """

    chunks: list[Block] | list[Tensor]
    count: int

    @classmethod
    def kept(cls, mask: Tensor | None, like: Tensor, what: str) -> "Rows":
        """Return the rows that a mask keeps.

        Args:
            mask: (...), 1 or True for the rows to keep; None keeps all.
            like: a tensor (..., width) with the shape and device of the tensors that will be read.
            what: name of these tensors, for error messages.

        Raises:
            ValueError: the mask has the wrong shape or values other than 0 and 1, or keeps no row.
        """
        *leading, width = like.shape
        total = math.prod(leading)
        size = max(1, (_CPU_CHUNK if like.device.type == "cpu" else _OTHER_CHUNK) // width)
        if mask is not None:
            indices = boolean_mask(mask, torch.Size(leading), what).flatten().nonzero().squeeze(1)  # (kept,)
            if len(indices) == 0:
                raise ValueError(
                    f"{what}: the mask keeps none of {total} positions; drop batches that are all padding"
                )
            if len(indices) < total:
                return cls(list(torch.split(indices.to(like.device), size)), len(indices))
        return cls(_blocks(leading, size), total)


def _blocks(leading: list[int], size: int) -> list[Block]:
    """Return blocks that cover a tensor (*leading, width), each of at most `size` rows."""
    first, *others = leading
    inner = math.prod(others)
    if inner > size:
        return [(i, *block) for i in range(first) for block in _blocks(others, size)]
    step = size // inner
    return [(slice(i, i + step),) for i in range(0, first, step)]


def mean_over_rows(student: Tensor, teacher: Tensor, rows: Rows, divergence: Divergence) -> Tensor:
    """Return the mean of a divergence over some rows of two tensors.

    The gradient flows to the student only and can be taken once: there is no second derivative. It is exactly
    zero in rows that are not kept, even if they hold nan.

    Args:
        student: (..., width), any floating point dtype.
        teacher: (..., width); its dtype may differ.
        rows: the rows to average over.
        divergence: the distance between two rows.

    Returns:
        A scalar: float64 if either tensor is, otherwise float32.
    """
    mean: Tensor = _MeanOverRows.apply(student, teacher.detach(), rows, divergence)  # type: ignore[no-untyped-call]
    return mean


class _MeanOverRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, rows: Rows, divergence: Divergence) -> Tensor:
        ctx.rows, ctx.divergence = rows, divergence
        # Autograd refuses to save tensors computed under torch.inference_mode, which many teachers run in.
        ctx.teacher = teacher if teacher.is_inference() else None
        ctx.save_for_backward(student, *([] if teacher.is_inference() else [teacher]))
        dtype = at_least_float32(student, teacher)
        total = torch.zeros((), dtype=dtype, device=student.device)
        for chunk in rows.chunks:
            total += divergence.value(_take(student, chunk, dtype), _take(teacher, chunk, dtype)).sum()
        return total / rows.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        student, *saved = ctx.saved_tensors
        teacher = saved[0] if saved else ctx.teacher
        dtype = at_least_float32(student, teacher)
        scale = grad_output / ctx.rows.count
        width = student.shape[-1]
        all_rows = ctx.rows.count * width == student.numel()
        make = torch.empty_like if all_rows else torch.zeros_like
        gradient = make(student, memory_format=torch.contiguous_format)
        for chunk in ctx.rows.chunks:
            part = ctx.divergence.gradient(_take(student, chunk, dtype), _take(teacher, chunk, dtype))
            part = part.mul_(scale).to(student.dtype)
            if isinstance(chunk, Tensor):
                gradient.view(-1, width).index_copy_(0, chunk, part)
            else:
                gradient[chunk] = part
        return gradient, None, None, None


def _take(tensor: Tensor, chunk: Block | Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows of a chunk, (..., width), in the dtype in which the loss is computed."""
    if not isinstance(chunk, Tensor):
        return tensor[chunk].to(dtype)
    *leading, width = tensor.shape
    if tensor.is_contiguous():  # index_select takes a fifth of the time of the indexing below
        return tensor.view(-1, width).index_select(0, chunk).to(dtype)
    return tensor[torch.unravel_index(chunk, leading)].to(dtype)


def at_least_float32(student: Tensor, teacher: Tensor) -> torch.dtype:
    """Return the dtype in which the loss between two tensors is computed."""
    return torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)

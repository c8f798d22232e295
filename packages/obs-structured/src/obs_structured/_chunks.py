"""Chunks of inputs, centred so that products in float32 keep their digits.

A mean far larger than the spread would hide the spread in float32 products.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

# Number of inputs per matrix product. Within such a chunk, products may be summed in float32; the sums of all
# chunks are added up in float64.
CHUNK = 4096


class Chunk(NamedTuple):
    """Some inputs x, (n, d), of weights w, as products are made of them."""

    centred: torch.Tensor  # √w (x − centre), (n, d)
    mean: torch.Tensor  # (d,) float64
    offset: torch.Tensor  # mean − centre, (d,) float64
    weight: float  # Σ w


def chunks_of(rows: torch.Tensor, weights: torch.Tensor | None) -> Iterator[Chunk]:
    """Split inputs (n, d) with weights (n,)."""
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        yield _chunk(rows[part], None if weights is None else weights[part])


def _chunk(rows: torch.Tensor, weights: torch.Tensor | None) -> Chunk:
    """Return a chunk of inputs (n, d) with weights (n,), or of weight 1.

    The centre is exact in the dtype of the products, so that each x − centre is rounded only once, and no
    float64 copy of the inputs is needed. It is close to the mean, but not equal to it.
    """
    dtype = dtype_of_products(rows)
    rows = rows.to(dtype)
    if weights is None:
        weights = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        roots = weights.to(dtype)
    else:
        roots = weights.sqrt().to(dtype)
    total = float(weights.sum())
    centre = (weights / total).to(dtype) @ rows  # (d,)
    centred = (rows - centre).mul_(roots[:, None])
    offset = (roots @ centred).double() / total
    return Chunk(centred, centre.double() + offset, offset, total)


def dtype_of_products(rows: torch.Tensor) -> torch.dtype:
    """Return the dtype in which products of these inputs are computed."""
    return torch.float32 if rows.dtype != torch.float64 and _full_precision() else torch.float64


def largest_of(rows: torch.Tensor) -> float:
    """Return the largest absolute value, or nan if there is a nan."""
    values = rows.float() if rows.element_size() == 1 else rows  # few operations support 8-bit floats
    smallest, largest = values.aminmax()
    return float(torch.maximum(-smallest, largest))


def _full_precision() -> bool:
    """Return whether float32 products are computed in float32, not in tf32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # raised if the precision is set for individual backends
        return False

"""Files of width traces and score traces: what they hold, and which values are possible."""

from typing import Any

import torch

from obs_structured._files import unpack_triangle
from obs_structured._header import FLOAT, Damaged, Header

WIDTHS = "obs-structured width trace 1"
SCORES = "obs-structured score trace 1"


def check_widths(header: Header) -> dict[str, Any]:
    """Return the scalars of a width trace as arguments of `WidthTrace`.

    Raises:
        Damaged: if the file cannot be a width trace.
    """
    header.require_names(
        ("absolute_damping", "dtype", "scale", "unit"), ("output", "triangle", "basis"), ("mean", "metric")
    )
    rows, columns = header.matrix_shape("output")
    heads, size, _ = header.cubic_shape("basis")
    if heads * size != columns:
        raise Damaged(f"its basis is for {heads} heads of {size}, but its output has {columns} columns")
    header.require_tensor("output", FLOAT, (rows, columns))
    header.require_tensor("basis", FLOAT, (heads, size, size))
    header.require_tensor("triangle", FLOAT, (columns * (columns + 1) // 2,))
    header.require_tensor("mean", FLOAT, (columns,))
    if len(header.tensors.get("metric", ("", ()))[1]) == 1:
        header.require_tensor("metric", FLOAT, (rows,))
    else:
        header.require_tensor("metric", FLOAT, (rows, rows))
    return {
        "absolute_damping": header.number("absolute_damping"),
        "dtype": header.dtype("dtype"),
        "scale": header.number("scale", positive=True),
        "unit": header.number("unit", positive=True),
    }


def decode_widths(scalars: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Turn the checked content of a file into the arguments of `WidthTrace`.

    Raises:
        Damaged: if the basis is not orthogonal.
    """
    # Products can depend on how a tensor is aligned in memory, and those in a file are not aligned.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    basis = tensors["basis"]
    identity = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    if not torch.allclose(basis.mT @ basis, identity.expand_as(basis), rtol=0, atol=1e-9):
        raise Damaged("its basis is not orthogonal")
    lower = unpack_triangle(tensors["triangle"], tensors["output"].shape[1])
    return scalars | {
        "output": tensors["output"],
        "hessian": lower + lower.tril(-1).mT,
        "basis": basis,
        "mean": tensors.get("mean"),
        "metric": tensors.get("metric"),
    }


def check_scores(header: Header) -> None:
    """Raise Damaged if the file cannot be a score trace."""
    header.require_names((), ("query", "key", "errors"))
    heads, size, _ = header.cubic_shape("query")
    header.require_tensor("query", FLOAT, (heads, size, size))
    header.require_tensor("key", FLOAT, (heads, size, size))
    header.require_tensor("errors", FLOAT, (heads, size + 1))


def decode_scores(_: None, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the arguments of `ScoreTrace`.

    Raises:
        Damaged: if an error is negative.
    """
    if tensors["errors"].min() < 0:
        raise Damaged(f"an error is {tensors['errors'].min():g}, but errors cannot be negative")
    return dict(tensors)

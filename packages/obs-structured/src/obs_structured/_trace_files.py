"""Trace files: which tensors and scalars they hold, and which values are possible."""

from typing import Any

import torch

from obs_structured._files import unpack_triangle
from obs_structured._header import FLOAT, INTEGER, Damaged, Header

FORMAT = "obs-structured trace 1"
_SCALARS = ("group_size", "updated", "damping", "absolute_damping", "free_columns", "dtype", "scale")


def check(header: Header) -> dict[str, Any]:
    """Return the scalars of a trace file as arguments of `Trace`.

    Raises:
        Damaged: if the file cannot be a trace.
    """
    header.require_names(_SCALARS, ("order", "errors", "components", "triangle"), optional=("mean",))
    _, d = header.matrix_shape("components")
    group_size = header.integer("group_size", 1, d)
    if d % group_size:
        raise Damaged(f"group_size is {group_size}, which does not divide its {d} columns")
    groups = d // group_size
    free_columns = header.integer("free_columns", 0, d)
    if free_columns % group_size:
        raise Damaged(f"free_columns is {free_columns}, which is not a multiple of the group size")
    header.require_tensor("components", FLOAT, header.matrix_shape("components"))
    header.require_tensor("triangle", FLOAT, (d * (d + 1) // 2,))
    header.require_tensor("mean", FLOAT, (d,))
    header.require_tensor("errors", FLOAT, (groups + 1,))
    header.require_tensor("order", INTEGER, (groups,))
    return {
        "group_size": group_size,
        "updated": header.boolean("updated"),
        "damping": header.number("damping"),
        "absolute_damping": header.number("absolute_damping"),
        "free_columns": free_columns,
        "dtype": header.dtype("dtype"),
        "scale": header.number("scale", positive=True),
    }


def decode(scalars: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Turn the checked content of a trace file into the arguments of `Trace`.

    Raises:
        Damaged: if the order is not a permutation, or an error is negative.
    """
    order, errors = tensors["order"], tensors["errors"]
    if not order.sort().values.equal(torch.arange(len(order), device=order.device)):
        raise Damaged(f"its order does not contain each of the {len(order)} groups exactly once")
    if errors.min() < 0:
        raise Damaged(f"an error is {errors.min():g}, but errors cannot be negative")
    columns = tensors["components"].shape[1]
    return scalars | {
        "order": order,
        "errors": errors,
        "components": tensors["components"],
        "matrix": unpack_triangle(tensors["triangle"], columns),
        "mean": tensors.get("mean"),
    }

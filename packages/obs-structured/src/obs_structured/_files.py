"""Trace files: safetensors with the scalars of a trace as JSON in the metadata."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

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


def write(path: Path, tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> None:
    """Write a trace file atomically: under a temporary name first, which then replaces `path`."""
    metadata = {"format": FORMAT, "scalars": json.dumps(scalars)}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(safetensors.torch.save(tensors, metadata))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(
    path: str | os.PathLike[str], device: torch.device | str
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a trace file.

    Raises:
        ValueError: if the file is not a trace.
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
    return tensors, metadata


def decode(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> dict[str, Any]:
    """Turn the content of a trace file into the arguments of `Trace`.

    Raises:
        KeyError, TypeError, ValueError, RuntimeError: if the content is damaged.
    """
    scalars = json.loads(metadata["scalars"])
    scalars["dtype"] = DTYPES[scalars["dtype"]]
    d = tensors["components"].shape[1]
    _check_order(tensors["order"], scalars["group_size"], d)
    arguments = {**tensors, **scalars}
    arguments["matrix"] = unpack_triangle(arguments.pop("triangle"), d)
    arguments.setdefault("mean", None)
    return arguments


def _check_order(order: torch.Tensor, group_size: int, d: int) -> None:
    groups = torch.arange(len(order), device=order.device)
    if len(order) * group_size != d or not order.sort().values.equal(groups):
        raise ValueError(f"its order does not contain each group of the {d} columns exactly once")


def pack_triangle(matrix: torch.Tensor) -> torch.Tensor:
    """Return the lower triangle of a matrix (d, d), row by row, (d (d + 1) / 2,)."""
    return torch.cat([matrix[row, : row + 1] for row in range(len(matrix))])


def unpack_triangle(packed: torch.Tensor, d: int) -> torch.Tensor:
    """Return the lower triangular matrix (d, d) that `pack_triangle` packed, (d (d + 1) / 2,).

    Raises:
        ValueError: if the number of values does not match d.
    """
    size = d * (d + 1) // 2
    if packed.shape != (size,):
        raise ValueError(f"its triangle has {packed.numel()} values, but {d} columns need {size}")
    matrix = packed.new_zeros(d, d)
    for row in range(d):
        start = row * (row + 1) // 2
        matrix[row, : row + 1] = packed[start : start + row + 1]
    return matrix

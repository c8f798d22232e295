"""Header of a file: its scalars, and the dtypes and shapes of its tensors, checked before any is loaded."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from obs_structured._checks import shortened

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
Shape = tuple[int, ...]
FLOAT, INTEGER = "F64", "I64"  # names of the dtypes in a safetensors header


class Damaged(ValueError):
    """A file of the right format has invalid content; the message says what is wrong with it."""


@dataclass(frozen=True)
class Header:
    """Header of a file: its tensors and metadata, read before any tensor is loaded."""

    scalars: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, Shape]]  # dtype and shape by name

    def require_names(
        self, scalars: Collection[str], tensors: Collection[str], optional: Collection[str] = ()
    ) -> None:
        """Raise Damaged if a scalar or tensor is missing, or if there is one that is not named here."""
        for kind, found, needed, allowed in (
            ("scalar", self.scalars, scalars, scalars),
            ("tensor", self.tensors, tensors, {*tensors, *optional}),
        ):
            if missing := sorted(set(needed) - set(found)):
                raise Damaged(f"the {kind} {missing[0]} is missing")
            if unknown := sorted(set(found) - set(allowed)):
                raise Damaged(f"it has an unknown {kind}, {shortened(unknown[0])}")

    def require_tensor(self, name: str, dtype: str, shape: Shape) -> None:
        """Raise Damaged if the file has this tensor with another dtype or shape."""
        found = self.tensors.get(name, (dtype, shape))
        if found != (dtype, shape):
            raise Damaged(
                f"{name} is {found[0]} of shape {shortened(found[1])}, but must be {dtype} of shape {shape}"
            )

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """Return the shape of a tensor with two dimensions; raise Damaged if it has others, or is empty."""
        shape = self.tensors[name][1]
        if len(shape) != 2 or 0 in shape:
            raise Damaged(
                f"{name} has shape {shortened(shape)}, but must have 2 dimensions, and none may be 0"
            )
        return shape[0], shape[1]

    def cubic_shape(self, name: str) -> tuple[int, int, int]:
        """Return the shape (n, d, d) of a stack of square matrices; raise Damaged if it has another one."""
        shape = self.tensors[name][1]
        if len(shape) != 3 or 0 in shape or shape[1] != shape[2]:
            raise Damaged(f"{name} has shape {shortened(shape)}, but must be a stack of square matrices")
        return shape[0], shape[1], shape[2]

    def integer(self, name: str, least: int, most: int) -> int:
        """Return a scalar that must be an integer in a range."""
        value = self.scalars[name]
        if type(value) is not int or not least <= value <= most:
            raise Damaged(f"{name} is {shortened(value)}, but must be an integer from {least} to {most}")
        return value

    def number(self, name: str, *, positive: bool = False) -> float:
        """Return a scalar that must be a number from 0 to 1e300, and not 0 if it must be positive."""
        value = self.scalars[name]
        if type(value) not in (int, float) or not 0 <= value <= 1e300 or (positive and value == 0):
            least = "above 0" if positive else "from 0"
            raise Damaged(f"{name} is {shortened(value)}, but must be a number {least} up to 1e300")
        return float(value)

    def boolean(self, name: str) -> bool:
        """Return a scalar that must be true or false."""
        value = self.scalars[name]
        if not isinstance(value, bool):
            raise Damaged(f"{name} is {shortened(value)}, but must be true or false")
        return value

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype that a scalar names."""
        value = self.scalars[name]
        if not isinstance(value, str) or value not in DTYPES:
            raise Damaged(f"{name} is {shortened(value)}, but must be one of {', '.join(DTYPES)}")
        return DTYPES[value]

"""What the losses refuse, and the words they refuse it with."""

import math

import torch
from torch import Tensor


def require_same(student: Tensor, teacher: Tensor, what: str) -> None:
    """Refuse tensors that cannot be compared: other shapes, other devices, integers, nothing at all."""
    if student.shape != teacher.shape:
        raise ValueError(
            f"{what}: the student's shape is {tuple(student.shape)}, the teacher's {tuple(teacher.shape)}; "
            "give both models the same batch"
        )
    if student.device != teacher.device:
        raise ValueError(
            f"{what}: the student is on {student.device}, the teacher on {teacher.device}; move one of them"
        )
    for name, tensor in (("student", student), ("teacher", teacher)):
        if not tensor.is_floating_point():
            raise ValueError(
                f"{what}: the {name}'s dtype is {tensor.dtype}; a floating point dtype is needed"
            )
    if student.numel() == 0:
        raise ValueError(f"{what}: shape {tuple(student.shape)} holds no values; give at least one example")


def require_temperature(temperature: float) -> None:
    """Refuse a temperature that is not a positive number."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature is {temperature}; it must be positive (1.0 leaves the logits as they are)"
        )


def require_finite(
    loss: Tensor, student: Tensor, teacher: Tensor, what: str, mask: Tensor | None = None
) -> None:
    """Refuse a loss that is nan or infinite, and say whose values made it so.

    The inputs are searched, where the mask lets them count, only once the loss has shown that something
    is wrong.
    """
    if torch.isfinite(loss):
        return
    for name, tensor in (("student", student), ("teacher", teacher)):
        values = tensor if mask is None else tensor[mask.to(tensor.device, torch.bool)]
        if bad := int((~torch.isfinite(values)).sum()):
            raise ValueError(
                f"{what}: the loss is {loss.item()}; "
                f"{bad} of the {name}'s {values.numel()} values are nan or infinite"
            )
    raise ValueError(
        f"{what}: the loss is {loss.item()} though all inputs are finite; their values are too large"
    )


def boolean_mask(mask: Tensor, shape: torch.Size, what: str) -> Tensor:
    """The mask as booleans, True for what counts; refuses another shape and values other than 0 and 1."""
    if mask.shape != shape:
        raise ValueError(f"{what}: the mask's shape is {tuple(mask.shape)}; it must be {tuple(shape)}")
    if mask.dtype == torch.bool:
        return mask
    kept = mask == 1
    if not torch.all(kept | (mask == 0)):
        value = mask[~kept & (mask != 0)][0].item()
        raise ValueError(f"{what}: the mask holds {value}; it must hold 1 for what counts and 0 for padding")
    return kept

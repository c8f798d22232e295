"""What the losses refuse, and the words they refuse it with."""

import torch
from torch import Tensor

# Here logits that differ by 1 still give a KL exact to 0.02 % in float32; the error grows with the square.
_HIGHEST_TEMPERATURE = 1e4


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
    """Refuse a temperature that is not positive, or so high that float32 sees equal probabilities only."""
    if not 0 < temperature <= _HIGHEST_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}; it must be positive and at most {_HIGHEST_TEMPERATURE:.0f} "
            "(1.0 leaves the logits as they are)"
        )


def require_finite(
    loss: Tensor, student: Tensor, teacher: Tensor, what: str, mask: Tensor | None = None
) -> None:
    """Refuse a loss that is nan or infinite, and say whose values made it so.

    The inputs are searched, where the mask lets them count, only once the loss has shown that something
    is wrong. A logit of -inf may exclude a class, so it is suspected last.
    """
    if torch.isfinite(loss):
        return
    if mask is not None:
        kept = mask.to(student.device, torch.bool)
        student, teacher = student[kept], teacher[kept]
    for name, bad in (
        ("student", student.isnan() | student.isposinf()),
        ("teacher", teacher.isnan() | teacher.isposinf()),
        ("student", student.isneginf() & teacher.isfinite()),
        ("teacher", teacher.isneginf()),
    ):
        if count := int(bad.sum()):
            raise ValueError(
                f"{what}: the loss is {loss.item()}; "
                f"{count} of the {name}'s {bad.numel()} values are nan or infinite"
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

"""Input checks shared by the losses."""

import torch
from torch import Tensor

# At this temperature, logits that differ by 1 still give a float32 KL accurate to 0.02 %. The relative error
# grows with the square of the temperature.
_HIGHEST_TEMPERATURE = 1e4


def require_same(student: Tensor, teacher: Tensor, what: str) -> None:
    """Raise unless two tensors can be compared: same shape and device, floating point, not empty."""
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
                f"{what}: the {name}'s dtype is {tensor.dtype}; it must be a floating point dtype"
            )
    if student.numel() == 0:
        raise ValueError(f"{what}: shape {tuple(student.shape)} has no elements; give at least one example")


def require_same_last_size(student: Tensor, teacher: Tensor, what: str, size: str, advice: str) -> None:
    """Raise if the last dimensions differ, which another batch would not change.

    Args:
        student: tensor of the student.
        teacher: tensor of the teacher.
        what: name of the tensors in the error message.
        size: name of their last dimension's size, in the plural.
        advice: what to do about the difference.
    """
    if min(student.ndim, teacher.ndim) < 2 or student.ndim != teacher.ndim:
        return  # not even the number of dimensions is right, which `require_same` reports
    ours, theirs = student.shape[-1], teacher.shape[-1]
    if ours != theirs:
        raise ValueError(
            f"{what}: the {size} differ, {ours} of the student and {theirs} of the teacher; {advice}"
        )


def require_temperature(temperature: float) -> None:
    """Raise unless the temperature is positive, and low enough for an accurate KL in float32."""
    if not 0 < temperature <= _HIGHEST_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}; it must be positive and at most {_HIGHEST_TEMPERATURE:.0f} "
            "(1.0 leaves the logits unchanged)"
        )


def require_finite(
    loss: Tensor, student: Tensor, teacher: Tensor, what: str, mask: Tensor | None = None
) -> None:
    """Raise if the loss is nan or infinite, and say which model's values caused it.

    The inputs, restricted to what the mask keeps, are searched only after the loss has turned out not to be
    finite. A logit of -inf is checked last, because it may legitimately exclude a class.
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
        f"{what}: the loss is {loss.item()} although all inputs are finite; their values are too large"
    )


def boolean_mask(mask: Tensor, shape: torch.Size, what: str) -> Tensor:
    """Return the mask as booleans; raise unless it has this shape and holds only 0 and 1."""
    if mask.shape != shape:
        raise ValueError(f"{what}: the mask's shape is {tuple(mask.shape)}; it must be {tuple(shape)}")
    if mask.dtype == torch.bool:
        return mask
    kept = mask == 1
    if not torch.all(kept | (mask == 0)):
        value = mask[~kept & (mask != 0)][0].item()
        raise ValueError(f"{what}: the mask holds {value}; use 1 for what to keep and 0 for padding")
    return kept

"""Losses are computed in at least float32 for any input dtype, and keep no copies of their inputs."""

from collections.abc import Callable

import pytest
import token_distill._rows as rows_module
import torch
from token_distill import logit_loss, regression_loss, span_loss, token_loss
from token_distill_reference import hidden, normal
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]])
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logit": lambda s, t: logit_loss(s, t, 2.0, MASK),
    "span": lambda s, t: span_loss((s[..., 0], s[..., 1]), (t[..., 0], t[..., 1]), 2.0, MASK),
    "regression": regression_loss,
    "euclidean": lambda s, t: token_loss([s, s], [t, t], MASK),
    "mse": lambda s, t: token_loss([s, s], [t, t], MASK, distance="mse"),
    "cosine": lambda s, t: token_loss([s, s], [t, t], MASK, distance="cosine"),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("teacher_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("student_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", LOSSES)
def test_low_precision_inputs_are_computed_in_float32(name, student_dtype, teacher_dtype, autocast):
    student = normal(3, 4, 8, seed=0, dtype=student_dtype).requires_grad_()
    teacher = normal(3, 4, 8, seed=1, dtype=teacher_dtype)
    exact_student = student.detach().double().requires_grad_()
    exact = LOSSES[name](exact_student, teacher.double())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = LOSSES[name](student, teacher)
    assert loss.dtype == torch.float32
    assert exact.dtype == torch.float64
    assert loss.item() == pytest.approx(exact.item(), rel=3e-6)  # bfloat16 rounds to 4e-3, float16 to 5e-4
    loss.backward()
    exact.backward()
    assert student.grad.dtype == student_dtype
    rounding = torch.finfo(student_dtype).eps  # only the result is rounded, not each step
    torch.testing.assert_close(student.grad.double(), exact_student.grad, rtol=rounding, atol=1e-7)


class Allocations(TorchDispatchMode):
    """Record the number of elements of every new tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in known:
            self.sizes.append(result.untyped_storage().nbytes() // result.element_size())
        return result


def stacked(student: list[Tensor], teacher: list[Tensor], mask: Tensor) -> Tensor:
    """The obvious implementation: stack all layers."""
    lengths = (torch.stack(student[1:]) - torch.stack(teacher[1:])).norm(dim=-1) * mask
    return (lengths.sum(dim=(1, 2)) / mask.sum()).mean()


LAYOUTS: dict[str, Callable[[int], list[Tensor]]] = {  # five hidden states, each (4, 16, 32)
    "contiguous": lambda seed: hidden(5, 4, 16, 32, seed=seed),
    "tokens first": lambda seed: [tensor.transpose(0, 1) for tensor in hidden(5, 16, 4, 32, seed=seed)],
    "without the first token": lambda seed: [tensor[:, 1:] for tensor in hidden(5, 4, 17, 32, seed=seed)],
}


def memory_use(loss: Callable[..., Tensor], layout: str = "contiguous") -> tuple[int, int, list[int]]:
    """Run a loss forward and backward and record its memory, in elements.

    Returns the size of the largest tensor that the forward pass allocates, the total size of the tensors that
    it keeps, and the sizes of all tensors that the backward pass allocates, largest first.
    """
    student = [tensor.requires_grad_() for tensor in LAYOUTS[layout](0)]
    teacher = LAYOUTS[layout](1)
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[0, 9:] = 0
    inputs = {tensor.untyped_storage().data_ptr() for tensor in student + teacher}
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in inputs:
            kept.append(tensor.numel())
        return tensor

    with Allocations() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss(student, teacher, mask)
    with Allocations() as backward:
        value.backward()
    return max(forward.sizes), sum(kept), sorted(backward.sizes, reverse=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_token_loss_neither_allocates_nor_keeps_a_copy_of_a_layer(layout, monkeypatch):
    chunk = 256
    monkeypatch.setattr(rows_module, "_CPU_CHUNK", chunk)
    layer = 4 * 16 * 32
    largest, kept, backward = memory_use(token_loss, layout)
    assert largest <= chunk
    assert kept < chunk
    # Each of the four layers has one gradient, which autograd may or may not copy into .grad.
    assert all(size <= chunk or size == layer for size in backward)
    assert 4 <= sum(size == layer for size in backward) <= 8


def test_the_stacked_implementation_allocates_and_keeps_all_layers():
    """Control: the measurement above would notice copies."""
    layer = 4 * 16 * 32
    largest, kept, backward = memory_use(stacked)
    assert largest == 4 * layer
    assert kept >= 4 * layer
    assert backward[0] == 4 * layer

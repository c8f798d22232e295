"""Token loss: agreement with the formula of the paper, gradients and invariances."""

import pytest
import token_distill._rows as rows_module
import token_distill_reference as reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_distill import token_loss
from token_distill_reference import hidden, masks, seeds

DISTANCES = ["euclidean", "mse", "cosine"]


@pytest.mark.parametrize("distance", DISTANCES)
@given(mask=masks(), layers=st.sets(st.integers(0, 3), min_size=1).map(sorted), seed=seeds)
def test_token_loss_matches_the_formula(distance, mask, layers, seed):
    student, teacher = hidden(5, *mask.shape, 3, seed=seed), hidden(5, *mask.shape, 3, seed=seed + 1)
    expected = reference.token_loss(student, teacher, mask, layers, distance)
    loss = token_loss(student, teacher, mask, layers, distance)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_embeddings_and_pruned_layers_are_ignored():
    student, teacher = hidden(4, 2, 3, 5, seed=0), hidden(4, 2, 3, 5, seed=1)
    everything = token_loss(student, teacher, None)
    student[0] = student[0] + 100
    assert token_loss(student, teacher, None) == everything
    assert token_loss(student, teacher, None, layers=[0, 1, 2]) == everything
    without_layer_1 = token_loss(student, teacher, None, layers=[0, 2])
    student[2] = student[2] + 100  # the output of layer 1
    assert token_loss(student, teacher, None, layers=[2, 0]).item() == pytest.approx(without_layer_1.item())
    assert token_loss(student, teacher, None) > everything + 10  # control: layer 1 matters if it is compared


def test_every_token_has_the_same_weight_whatever_the_padding():
    """The mean is over all tokens of the batch, as in the paper, and not over the means of the examples."""
    student, teacher = hidden(2, 2, 4, 3, seed=0), hidden(2, 2, 4, 3, seed=1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    lengths = (student[1] - teacher[1]).norm(dim=-1)
    loss = token_loss(student, teacher, mask).item()
    assert loss == pytest.approx((lengths[0].sum() + lengths[1, 0]).item() / 5, rel=1e-12)
    assert loss != pytest.approx((lengths[0].mean() + lengths[1, 0]).item() / 2, rel=0.01)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_gradients_are_exact_for_any_chunk_size(distance, chunk, monkeypatch):
    monkeypatch.setattr(rows_module, "_CPU_CHUNK", chunk)
    student, teacher = hidden(4, 2, 3, 3, seed=0), hidden(4, 2, 3, 3, seed=1)
    inputs = tuple(tensor.requires_grad_() for tensor in student)
    for mask in (None, torch.tensor([[1, 1, 0], [1, 0, 0]])):
        assert torch.autograd.gradcheck(
            lambda *s, m=mask: 3 * token_loss(s, teacher, m, [0, 2], distance), inputs
        )


@pytest.mark.parametrize("distance", DISTANCES)
@given(mask=masks(), extra=st.integers(1, 3), left=st.booleans(), seed=seeds)
def test_padding_changes_neither_loss_nor_gradients(distance, mask, extra, left, seed):
    batch, tokens = mask.shape
    place = slice(extra, None) if left else slice(tokens)
    student, teacher = hidden(3, *mask.shape, 4, seed=seed), hidden(3, *mask.shape, 4, seed=seed + 1)
    wide = torch.full((batch, tokens + extra, 4), torch.nan, dtype=torch.float64)
    wide_mask = torch.zeros(batch, tokens + extra, dtype=torch.bool)
    wide_mask[:, place] = mask
    wide_student, wide_teacher = [wide.clone() for _ in student], [wide.clone() for _ in student]
    for narrow, padded in zip(student + teacher, wide_student + wide_teacher, strict=True):
        padded[:, place] = narrow
    for tensor in student + wide_student:
        tensor.requires_grad_()
    loss = token_loss(student, teacher, mask, distance=distance)
    wide_loss = token_loss(wide_student, wide_teacher, wide_mask, distance=distance)
    assert wide_loss.item() == pytest.approx(loss.item(), rel=1e-12)
    loss.backward()
    wide_loss.backward()
    for narrow, padded in zip(student[1:], wide_student[1:], strict=True):
        torch.testing.assert_close(padded.grad[:, place], narrow.grad, rtol=1e-12, atol=1e-15)
        assert torch.all(padded.grad[~wide_mask] == 0)


@given(st.integers(2, 6), seeds)
def test_the_order_of_examples_does_not_matter(batch, seed):
    student, teacher = hidden(3, batch, 4, 5, seed=seed), hidden(3, batch, 4, 5, seed=seed + 1)
    mask = reference.normal(batch, 4, seed=seed + 2) > 0
    mask[:, 0] = True
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    shuffled = [tensor[order].requires_grad_() for tensor in student]
    student = [tensor.requires_grad_() for tensor in student]
    one = token_loss(student, teacher, mask)
    other = token_loss(shuffled, [tensor[order] for tensor in teacher], mask[order])
    assert one.item() == pytest.approx(other.item(), rel=1e-12)
    one.backward()
    other.backward()
    for plain, permuted in zip(student[1:], shuffled[1:], strict=True):
        torch.testing.assert_close(plain.grad[order], permuted.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("value", [0.0, 1.7])
def test_gradients_are_finite_where_student_equals_teacher(distance, value):
    same = [torch.full((2, 3, 4), value, requires_grad=True) for _ in range(3)]
    token_loss(same, [tensor.detach().clone() for tensor in same], None, distance=distance).backward()
    for tensor in same[1:]:
        torch.testing.assert_close(tensor.grad, torch.zeros(2, 3, 4), rtol=0, atol=1e-6)


def test_the_usual_formula_has_no_finite_gradient_where_student_equals_teacher():
    """Control: the square root of a sum of squares has gradient nan at zero."""
    same = torch.ones(2, 3, requires_grad=True)
    (same - torch.ones(2, 3)).square().sum(-1).sqrt().mean().backward()
    assert torch.all(torch.isnan(same.grad))


def test_a_teacher_run_in_inference_mode_is_accepted():
    student = [tensor.requires_grad_() for tensor in hidden(3, 2, 3, 4, seed=0)]
    teacher = hidden(3, 2, 3, 4, seed=1)
    with torch.inference_mode():
        frozen = [tensor * 1 for tensor in teacher]
    plain = torch.autograd.grad(token_loss(student, teacher, None), student[1:])
    inference = torch.autograd.grad(token_loss(student, frozen, None), student[1:])
    for one, other in zip(plain, inference, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mask", [None, torch.tensor([[1, 1, 0], [1, 1, 1]])])
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
        lambda tensor: torch.cat([tensor[:, :1], tensor], dim=1)[:, 1:],
        lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    ],
    ids=["tokens first", "without the first token", "tokens last"],
)
def test_the_memory_layout_does_not_matter(laid_out, mask, monkeypatch):
    monkeypatch.setattr(rows_module, "_CPU_CHUNK", 4 * 4)  # more than one chunk, the last not full
    student, teacher = hidden(3, 2, 3, 4, seed=0), hidden(3, 2, 3, 4, seed=1)
    turned, their_turned = ([laid_out(tensor) for tensor in tensors] for tensors in (student, teacher))
    assert not turned[1].is_contiguous()
    for tensor in student + turned:
        tensor.requires_grad_()
    one, other = token_loss(student, teacher, mask), token_loss(turned, their_turned, mask)
    assert one == other
    one.backward()
    other.backward()
    assert torch.equal(student[1].grad, turned[1].grad)

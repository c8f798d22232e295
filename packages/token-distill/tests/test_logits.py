"""Losses on logits: agreement with reference formulas, accuracy, gradients and invariances."""

import pytest
import token_distill_reference as reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_distill import logit_loss, regression_loss, span_loss
from token_distill_reference import masks, normal, seeds, temperatures
from torch.nn import functional as F  # noqa: N812


def close(expected, temperature):
    """Compare with a tolerance that grows with T², which amplifies the rounding error of a KL."""
    return pytest.approx(expected, rel=1e-12, abs=1e-14 * temperature**2)


@given(st.integers(1, 5), st.integers(2, 6), temperatures, seeds)
def test_logit_loss_matches_the_formula(batch, classes, temperature, seed):
    student, teacher = normal(batch, classes, seed=seed), normal(batch, classes, seed=seed + 1)
    expected = reference.logit_loss(student, teacher, temperature)
    assert logit_loss(student, teacher, temperature).item() == close(expected, temperature)


@given(masks(), temperatures, seeds)
def test_logit_loss_per_token_is_the_mean_over_kept_tokens(mask, temperature, seed):
    student, teacher = normal(*mask.shape, 5, seed=seed), normal(*mask.shape, 5, seed=seed + 1)
    expected = reference.logit_loss(student, teacher, temperature, mask)
    assert logit_loss(student, teacher, temperature, mask).item() == close(expected, temperature)


@given(masks(), temperatures, seeds)
def test_span_loss_matches_the_formula(mask, temperature, seed):
    start, end, their_start, their_end = (normal(*mask.shape, seed=seed + k) for k in range(4))
    expected = reference.span_loss([start, end], [their_start, their_end], temperature, mask)
    loss = span_loss((start, end), (their_start, their_end), temperature, mask)
    assert loss.item() == close(expected, temperature)


def test_the_reference_formula_differs_from_common_mistakes():
    """Control: typical mistakes would not pass the tests above."""
    student, teacher = normal(3, 4, seed=0), normal(3, 4, seed=1)
    right = reference.logit_loss(student, teacher, 2.0)
    ours, theirs = F.log_softmax(student / 2, -1), F.log_softmax(teacher / 2, -1)
    without_factor = F.kl_div(ours, theirs, log_target=True, reduction="batchmean").item()
    assert without_factor == pytest.approx(right / 4)
    reversed_kl = 4 * F.kl_div(theirs, ours, log_target=True, reduction="batchmean").item()
    assert reversed_kl != pytest.approx(right, rel=0.01)
    start, mask = (normal(1, 4, seed=2), normal(1, 4, seed=3)), torch.tensor([[1, 1, 0, 1]])
    unmasked = span_loss(start, (student[:1], teacher[:1]), 2.0).item()
    masked = span_loss(start, (student[:1], teacher[:1]), 2.0, mask).item()
    assert unmasked != pytest.approx(masked, rel=0.01)


def test_a_mask_over_examples_drops_the_others():
    student, teacher = normal(3, 4, seed=0), normal(3, 4, seed=1)
    loss = logit_loss(student, teacher, mask=torch.tensor([1, 0, 1]))
    assert loss.item() == pytest.approx(logit_loss(student[::2], teacher[::2]).item(), rel=1e-14)


def usual_kl(student, teacher, temperature):
    """The textbook formula, in the dtype of the logits."""
    ours, theirs = F.log_softmax(student / temperature, -1), F.log_softmax(teacher / temperature, -1)
    return temperature**2 * F.kl_div(ours, theirs, log_target=True, reduction="batchmean").item()


@pytest.mark.parametrize(
    ("difference", "temperature"), [(1e-4, 1.0), (1e-4, 20.0), (1e-2, 100.0), (1.0, 20.0), (1.0, 1e4)]
)
def test_float32_is_accurate_when_student_and_teacher_are_close(difference, temperature):
    student = normal(8, 1000, seed=0, dtype=torch.float32)
    teacher = student + difference * normal(8, 1000, seed=1, dtype=torch.float32)
    expected = reference.logit_loss(student, teacher, temperature)
    assert logit_loss(student, teacher, temperature).item() == pytest.approx(expected, rel=0.01)
    if (difference, temperature) != (1.0, 20.0):  # control: elsewhere, rounding dominates the usual sum
        assert usual_kl(student, teacher, temperature) != pytest.approx(expected, rel=1.0)


@given(st.floats(1e-8, 10), st.floats(0.01, 1e4), st.integers(2, 300), seeds)
def test_float32_losses_are_never_negative(difference, temperature, classes, seed):
    student = normal(1, classes, seed=seed, dtype=torch.float32)
    teacher = student + difference * normal(1, classes, seed=seed + 1, dtype=torch.float32)
    assert logit_loss(student, teacher, temperature) >= 0
    assert logit_loss(student, student.clone(), temperature) == 0


@pytest.mark.parametrize("teacher_logit", [-80.0, -90.0, -95.0, -103.0, -120.0, -torch.inf])
@pytest.mark.parametrize("student_logit", [-100.0, 0.0, 200.0])
def test_a_class_that_the_teacher_nearly_excludes_may_be_likely_for_the_student(student_logit, teacher_logit):
    """In float32 the ratio of the probabilities overflows, and the teacher's probability underflows."""
    student, teacher = torch.tensor([[0.0, student_logit, 1.0]]), torch.tensor([[1.0, teacher_logit, 0.0]])
    expected = reference.logit_loss(student, teacher, 1.0)
    assert logit_loss(student, teacher).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_gradients_are_exact_where_the_teacher_excludes_a_class(temperature):
    student, teacher = normal(2, 4, seed=0).requires_grad_(), normal(2, 4, seed=1)
    teacher[:, 2] = -torch.inf
    assert torch.autograd.gradcheck(lambda s: logit_loss(s, teacher, temperature), student)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_gradients_are_exact(temperature):
    student = normal(2, 3, 4, seed=0).requires_grad_()
    teacher, mask = normal(2, 3, 4, seed=1), torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert torch.autograd.gradcheck(lambda s: logit_loss(s, teacher, temperature, mask), student)
    start, end = student[0], student[1]
    their = (teacher[0], teacher[1])
    assert torch.autograd.gradcheck(lambda s, e: span_loss((s, e), their, temperature), (start, end))
    wide = torch.ones(3, 4, dtype=torch.bool).tril()
    assert torch.autograd.gradcheck(lambda s, e: span_loss((s, e), their, temperature, wide), (start, end))
    assert torch.autograd.gradcheck(lambda s: regression_loss(s, teacher), student)
    assert torch.autograd.gradcheck(lambda s: regression_loss(s, teacher, mask), student)


def test_the_gradient_hardly_depends_on_a_high_temperature():
    """This is the purpose of the factor T²: without it, the ratio of the norms would be 1/100."""
    teacher = normal(4, 5, seed=1)
    norms = []
    for temperature in (50.0, 500.0):
        student = normal(4, 5, seed=0).requires_grad_()
        logit_loss(student, teacher, temperature).backward()
        norms.append(student.grad.norm().item())
    assert norms[0] == pytest.approx(norms[1], rel=0.05)


@given(masks(), st.integers(1, 3), st.booleans(), seeds)
def test_padding_changes_neither_losses_nor_gradients(mask, extra, left, seed):
    batch, tokens = mask.shape
    place = slice(extra, None) if left else slice(tokens)
    wide_mask = torch.zeros(batch, tokens + extra, dtype=torch.bool)
    wide_mask[:, place] = mask
    for classes in ((), (5,)):
        student, teacher = (normal(*mask.shape, *classes, seed=seed + k) for k in range(2))
        wide_student, wide_teacher = (
            torch.full((batch, tokens + extra, *classes), torch.nan, dtype=torch.float64) for _ in range(2)
        )
        wide_student[:, place], wide_teacher[:, place] = student, teacher
        results = []
        for s, t, m in ((student, teacher, mask), (wide_student, wide_teacher, wide_mask)):
            s.requires_grad_()
            loss = logit_loss(s, t, 2.0, m) if classes else span_loss((s, s), (t, t), 2.0, m)
            loss.backward()
            results.append((loss.item(), s.grad))
        (narrow, gradient), (wide, wide_gradient) = results
        assert wide == pytest.approx(narrow, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(wide_gradient[:, place], gradient, rtol=1e-10, atol=1e-14)
        assert torch.all(wide_gradient[~wide_mask] == 0)


@given(st.integers(2, 6), seeds)
def test_the_order_of_examples_does_not_matter(batch, seed):
    student, teacher = normal(batch, 4, 5, seed=seed), normal(batch, 4, 5, seed=seed + 1)
    mask = normal(batch, 4, seed=seed + 2) > 0
    mask[:, 0] = True
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    for loss in (
        lambda s, t, m: logit_loss(s, t, 2.0, m),
        lambda s, t, m: span_loss((s[..., 0], s[..., 1]), (t[..., 0], t[..., 1]), 2.0, m),
        lambda s, t, m: regression_loss(s[:, 0], t[:, 0]),
    ):
        s = student.clone().requires_grad_()
        shuffled = student[order].clone().requires_grad_()
        one, other = loss(s, teacher, mask), loss(shuffled, teacher[order], mask[order])
        assert one.item() == pytest.approx(other.item(), rel=1e-12)
        one.backward()
        other.backward()
        torch.testing.assert_close(s.grad[order], shuffled.grad, rtol=1e-10, atol=1e-14)


def test_regression_loss_is_the_mean_squared_error():
    student, teacher = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [2.0], [1.0]])
    assert regression_loss(student, teacher).item() == pytest.approx((1 + 0 + 9) / 3)
    assert regression_loss(student[:, 0], teacher[:, 0]).item() == pytest.approx((1 + 0 + 9) / 3)
    assert regression_loss(student.T, teacher.T).item() == pytest.approx((1 + 0 + 9) / 3)
    mask = torch.tensor([1, 1, 0])
    assert regression_loss(student, teacher, mask).item() == pytest.approx((1 + 0) / 2)


@pytest.mark.parametrize(
    "loss",
    [logit_loss, lambda s, t: span_loss((s, s), (t, t), 1.0, torch.ones(3, 4)), regression_loss],
    ids=["logit", "span", "regression"],
)
def test_a_teacher_run_in_inference_mode_is_accepted(loss):
    student, teacher = normal(3, 4, seed=0).requires_grad_(), normal(3, 4, seed=1)
    with torch.inference_mode():
        frozen = teacher * 1
    (plain,) = torch.autograd.grad(loss(student, teacher), student)
    (inference,) = torch.autograd.grad(loss(student, frozen), student)
    assert torch.equal(plain, inference)


def test_classes_excluded_with_minus_infinity_contribute_nothing():
    student, teacher = normal(3, 4, seed=0), normal(3, 4, seed=1)
    masked_student, masked_teacher = student.clone(), teacher.clone()
    masked_student[:, 2] = masked_teacher[:, 2] = -torch.inf
    masked_student.requires_grad_()
    loss = logit_loss(masked_student, masked_teacher, 2.0)
    keep = [0, 1, 3]
    assert loss.item() == pytest.approx(logit_loss(student[:, keep], teacher[:, keep], 2.0).item(), rel=1e-12)
    loss.backward()
    assert torch.all(masked_student.grad[:, 2] == 0)
    assert torch.all(torch.isfinite(masked_student.grad))


def test_no_gradient_reaches_the_teacher():
    student, teacher = normal(3, 4, seed=0).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    for loss in (
        logit_loss(student, teacher),
        span_loss((student, student), (teacher, teacher)),
        regression_loss(student, teacher),
    ):
        loss.backward()
    assert student.grad is not None
    assert teacher.grad is None

"""Cosine loss: agreement with the formula, exact gradients, padding, and embedders trained without labels."""

import math

import pytest
import token_distill_reference as reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_distill import DistillationLoss, Outputs, cosine_loss
from token_distill_reference import hidden, masks, normal, seeds
from torch import nn

POOLINGS = ["mean", "cls"]
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])


def embeddings(states, mask, pooling):
    """Pool with plain loops, as sentence-transformers defines it."""
    if pooling == "cls":
        return [rows[0] for rows in states.tolist()]
    result = []
    for rows, counts in zip(states.tolist(), mask.tolist(), strict=True):
        kept = [row for row, count in zip(rows, counts, strict=True) if count]
        result.append([math.fsum(column) / len(kept) for column in zip(*kept, strict=True)])
    return result


@pytest.mark.parametrize("pooling", POOLINGS)
@given(mask=masks(), seed=seeds)
def test_cosine_loss_matches_the_formula(pooling, mask, seed):
    student, teacher = normal(*mask.shape, 3, seed=seed), normal(*mask.shape, 3, seed=seed + 1)
    pairs = zip(embeddings(student, mask, pooling), embeddings(teacher, mask, pooling), strict=True)
    expected = [reference.distance(ours, theirs, "cosine") for ours, theirs in pairs]
    loss = cosine_loss(student, teacher, mask, pooling)
    assert loss.item() == pytest.approx(math.fsum(expected) / len(expected), rel=1e-9)


@given(st.integers(1, 5), seeds)
def test_embeddings_that_are_pooled_already_are_compared_as_they_are(batch, seed):
    student, teacher = normal(batch, 4, seed=seed), normal(batch, 4, seed=seed + 1)
    expected = 1 - torch.cosine_similarity(student, teacher).mean().item()
    assert cosine_loss(student, teacher, pooling=None).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_mask_selects_examples_that_are_pooled_already():
    student, teacher = normal(3, 4, seed=0), normal(3, 4, seed=1)
    student[1] = torch.nan
    loss = cosine_loss(student, teacher, torch.tensor([1, 0, 1]), pooling=None)
    assert loss == cosine_loss(student[[0, 2]], teacher[[0, 2]], pooling=None)


@pytest.mark.parametrize("pooling", [*POOLINGS, None])
def test_gradients_are_exact(pooling):
    shape = (3, 6) if pooling is None else (3, 4, 6)
    student, teacher = normal(*shape, seed=0).requires_grad_(), normal(*shape, seed=1)
    for mask in (None, None if pooling is None else MASK):
        assert torch.autograd.gradcheck(
            lambda states, m=mask: 3 * cosine_loss(states, teacher, m, pooling), student
        )


@pytest.mark.parametrize("pooling", POOLINGS)
@given(mask=masks(), extra=st.integers(1, 3), seed=seeds)
def test_padding_changes_neither_loss_nor_gradient(pooling, mask, extra, seed):
    batch, tokens = mask.shape
    student, teacher = normal(*mask.shape, 4, seed=seed), normal(*mask.shape, 4, seed=seed + 1)
    wide = torch.full((batch, tokens + extra, 4), torch.nan, dtype=torch.float64)
    wide_student, wide_teacher = wide.clone(), wide.clone()
    wide_student[:, :tokens], wide_teacher[:, :tokens] = student, teacher
    wide_mask = torch.cat([mask, torch.zeros(batch, extra, dtype=torch.bool)], dim=1)
    student.requires_grad_()
    wide_student.requires_grad_()
    loss = cosine_loss(student, teacher, mask, pooling)
    wide_loss = cosine_loss(wide_student, wide_teacher, wide_mask, pooling)
    assert wide_loss.item() == pytest.approx(loss.item(), rel=1e-12)
    loss.backward()
    wide_loss.backward()
    torch.testing.assert_close(wide_student.grad[:, :tokens], student.grad, rtol=1e-12, atol=1e-15)
    assert torch.all(wide_student.grad[:, tokens:] == 0)


def test_control_the_mean_over_padding_is_another_loss():
    student, teacher = normal(3, 4, 6, seed=0), normal(3, 4, 6, seed=1)
    padded = cosine_loss(student, teacher).item()
    assert cosine_loss(student, teacher, MASK).item() != pytest.approx(padded, rel=1e-3)


@given(st.floats(0.01, 100), seeds)
def test_the_length_of_embeddings_does_not_matter(factor, seed):
    student, teacher = normal(3, 4, 6, seed=seed), normal(3, 4, 6, seed=seed + 1)
    expected = cosine_loss(student, teacher, MASK).item()
    assert cosine_loss(factor * student, teacher / factor, MASK).item() == pytest.approx(expected, rel=1e-9)


def test_nearly_equal_embeddings_keep_their_digits_in_float32():
    teacher = normal(4, 3, 64, seed=0)
    student = teacher + 1e-4 * normal(4, 3, 64, seed=1)
    exact = cosine_loss(student, teacher).item()
    assert cosine_loss(student.float(), teacher.float()).item() == pytest.approx(exact, rel=1e-3)
    ours, theirs = (tensor.float().mean(1) for tensor in (student, teacher))
    naive = 1 - torch.cosine_similarity(ours, theirs).mean().item()
    assert naive != pytest.approx(exact, rel=1e-3)  # control


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_pooled_in_float32(dtype):
    student, teacher = (normal(2, 512, 8, seed=seed, dtype=dtype) + 1 for seed in (0, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cosine_loss(student, teacher)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(cosine_loss(student.double(), teacher.double()).item(), rel=1e-4)


def test_zero_embeddings_have_distance_one_and_no_gradient():
    student = torch.zeros(2, 3, 4, requires_grad=True)
    loss = cosine_loss(student, torch.ones(2, 3, 4))
    loss.backward()
    assert loss == 1
    assert torch.all(student.grad == 0)
    same = torch.ones(2, 3, 4, requires_grad=True)
    loss = cosine_loss(same, torch.ones(2, 3, 4))
    loss.backward()
    assert loss == 0
    torch.testing.assert_close(same.grad, torch.zeros(2, 3, 4), rtol=0, atol=1e-7)


def test_a_teacher_run_in_inference_mode_is_accepted():
    student, teacher = normal(3, 4, 6, seed=0).requires_grad_(), normal(3, 4, 6, seed=1)
    with torch.inference_mode():
        frozen = teacher * 1
    for pooling in POOLINGS:
        (plain,) = torch.autograd.grad(cosine_loss(student, teacher, MASK, pooling), student)
        (inference,) = torch.autograd.grad(cosine_loss(student, frozen, MASK, pooling), student)
        assert torch.equal(plain, inference)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'; it must be one of mean, cls or None"),
        ({"pooling": None}, r"shape \(3, 4, 6\) must be \(batch, hidden\) for pooling None"),
        ({"student": torch.ones(3, 6), "teacher": torch.ones(3, 6)}, r"must be \(batch, tokens, hidden\)"),
        ({"teacher": torch.ones(3, 4, 5)}, "the hidden sizes differ, 6 of the student and 5 of the teacher"),
        ({"teacher": torch.ones(3, 5, 6)}, "give both models the same batch"),
        ({"mask": torch.ones(3, 5)}, r"the mask's shape is \(3, 5\); it must be \(3, 4\)"),
        ({"mask": torch.tensor([[1] * 4, [0] * 4, [1] * 4])}, "the mask keeps no token of example 1"),
        ({"mask": torch.full((3, 4), 2)}, "the mask holds 2"),
        ({"student": torch.full((3, 4, 6), torch.nan)}, "72 of the student's 72 values are nan"),
        ({"student": torch.full((3, 4, 6), 3e38)}, "all inputs are finite; their values are too large"),
    ],
)
def test_invalid_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        cosine_loss(**{"student": torch.ones(3, 4, 6), "teacher": torch.ones(3, 4, 6)} | arguments)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_it_is_a_part_of_the_distillation_loss(pooling):
    student, teacher = Outputs(None, hidden(4, 3, 4, 6, seed=0)), Outputs(None, hidden(4, 3, 4, 6, seed=1))
    loss = DistillationLoss(task=0, cosine=0.5, token=0.25, pooling=pooling)
    parts = loss(student, teacher, mask=MASK, layers=[0, 2])
    expected = cosine_loss(student.hidden_states[-1], teacher.hidden_states[-1], MASK, pooling)
    assert parts.cosine == expected
    assert not parts.cosine.requires_grad
    assert parts.total.item() == pytest.approx(0.5 * expected.item() + 0.25 * parts.token.item())
    assert list(parts.log()) == ["total", "token", "cosine"]
    assert "cosine" not in DistillationLoss(task=0, token=1)(student, teacher, mask=MASK).log()


def test_its_weight_and_pooling_are_checked():
    assert DistillationLoss(task=0, cosine=1.0).cosine == 1.0
    with pytest.raises(ValueError, match="weight cosine is -1"):
        DistillationLoss(cosine=-1)
    with pytest.raises(ValueError, match="pooling is 'max'; it must be one of mean, cls"):
        DistillationLoss(pooling="max")
    with pytest.raises(ValueError, match="task, logit, token and cosine are all 0"):
        DistillationLoss(task=0)
    with pytest.raises(ValueError, match="the cosine loss has a weight but no inputs; pass hidden_states"):
        DistillationLoss(task=0, cosine=1)(Outputs(torch.ones(2, 3)), Outputs(torch.ones(2, 3)))


def test_an_embedder_learns_its_teacher_from_texts_alone():
    """The student starts from a rank that is too low for its teacher; another text is closer afterwards."""
    torch.manual_seed(0)
    words = nn.Embedding(40, 16).requires_grad_(False)
    teacher = nn.Sequential(words, nn.Linear(16, 16), nn.Tanh()).requires_grad_(False)
    student = nn.Sequential(words, nn.Linear(16, 4), nn.Linear(4, 16), nn.Tanh())
    texts, mask = torch.randint(40, (64, 9)), torch.arange(9) < torch.randint(3, 10, (64, 1))
    loss = DistillationLoss(task=0, cosine=1.0)
    optimizer = torch.optim.Adam(student.parameters(), 0.01)

    def value(part):
        ours, theirs = (Outputs(hidden_states=[model(texts[part])]) for model in (student, teacher))
        return loss(ours, theirs, mask=mask[part]).total

    train, unseen = slice(48), slice(48, None)
    before = value(unseen).item()
    for _ in range(200):
        optimizer.zero_grad()
        value(train).backward()
        optimizer.step()
    assert value(unseen).item() < 0.6 * before

"""DistillationLoss: presets, weighted sum, parts with weight zero, choice of the head's loss."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import token_distill._loss as loss_module
import torch
from token_distill import DistillationLoss, Outputs, logit_loss, regression_loss, span_loss, token_loss
from token_distill_reference import hidden, normal
from torch import nn

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
LAYERS = [0, 2]


def outputs(seed, logits):
    return Outputs(logits, hidden(4, 3, 4, 6, seed=seed))


def test_presets_have_the_weights_of_the_paper():
    weights = {name: DistillationLoss.preset(name) for name in ("squad", "glue", "gpt2")}
    assert {name: (loss.task, loss.logit, loss.token) for name, loss in weights.items()} == {
        "squad": (0.0, 1.0, 0.0),
        "glue": (0.0, 0.5, 0.5),
        "gpt2": (1.0, 0.0, 0.0),
    }
    assert replace(weights["squad"], temperature=2.0) == DistillationLoss(0.0, 1.0, 0.0, 2.0)


@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5), (3, 1), (3,), "span"])
def test_the_total_is_the_weighted_sum_of_the_parts(shape):
    loss = DistillationLoss(task=0.3, logit=0.5, token=0.2, temperature=2.0, distance="mse")
    if shape == "span":
        ours, theirs = ((normal(3, 4, seed=seed), normal(3, 4, seed=seed + 9)) for seed in (0, 1))
        logit = span_loss(ours, theirs, 2.0, MASK)
    else:
        ours, theirs = normal(*shape, seed=0), normal(*shape, seed=1)
        if shape in ((3, 1), (3,)):
            logit = regression_loss(ours, theirs)
        else:
            logit = logit_loss(ours, theirs, 2.0, MASK if len(shape) == 3 else None)
    student, teacher = outputs(0, ours), outputs(1, theirs)
    token = token_loss(student.hidden_states, teacher.hidden_states, MASK, LAYERS, "mse")
    parts = loss(student, teacher, task_loss=torch.tensor(1.5), mask=MASK, layers=LAYERS)
    expected = {"total": 0.3 * 1.5 + 0.5 * logit.item() + 0.2 * token.item(), "task": 1.5}
    assert parts.log() == pytest.approx(expected | {"logit": logit.item(), "token": token.item()})


def test_the_gradient_is_the_weighted_sum_of_the_gradients_of_the_parts():
    logits, layer = normal(3, 5, seed=0).requires_grad_(), normal(3, 4, 6, seed=1).requires_grad_()
    teacher = outputs(1, normal(3, 5, seed=2))
    student = Outputs(logits, [layer] * 4)
    task = logits.square().mean()
    parts = DistillationLoss(2.0, 3.0, 5.0)(student, teacher, task_loss=task, mask=MASK)
    expected = (
        2 * task
        + 3 * logit_loss(logits, teacher.logits)
        + 5 * token_loss([layer] * 4, teacher.hidden_states, MASK)
    )
    for one, other in zip(
        torch.autograd.grad(parts.total, (logits, layer), retain_graph=True),
        torch.autograd.grad(expected, (logits, layer)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    assert not any(part.requires_grad for part in (parts.task, parts.logit, parts.token))


@pytest.mark.parametrize("zero", ["task", "logit", "token"])
def test_a_part_with_weight_zero_is_not_computed(zero, monkeypatch):
    """Its function is not even called, so invalid inputs cannot affect the total."""
    names = {"logit": "logit_loss", "token": "token_loss", "task": "_usable_task_loss"}

    def forbidden(*_):
        raise AssertionError(f"{zero} was computed")

    monkeypatch.setattr(loss_module, names[zero], forbidden)
    weights = {"task": 1.0, "logit": 1.0, "token": 1.0}
    student, teacher = outputs(0, normal(3, 5, seed=0)), outputs(1, normal(3, 5, seed=1))
    arguments = {"task_loss": torch.tensor(1.0), "mask": MASK}
    with pytest.raises(AssertionError, match="was computed"):  # control: with a weight, it is
        DistillationLoss(**weights)(student, teacher, **arguments)
    parts = DistillationLoss(**weights | {zero: 0.0})(student, teacher, **arguments)
    assert getattr(parts, zero) is None
    assert zero not in parts.log()


def test_inputs_of_a_part_with_weight_zero_may_be_missing_or_nan():
    nan = torch.tensor(torch.nan)
    parts = DistillationLoss.preset("gpt2")(Outputs(), task_loss=torch.tensor(2.0))
    assert parts.log() == {"total": 2.0, "task": 2.0}
    logits = normal(3, 5, seed=0)
    parts = DistillationLoss.preset("squad")(
        Outputs(logits, [nan]), Outputs(logits), task_loss=nan, layers=[99]
    )
    assert parts.log() == {"total": 0.0, "logit": 0.0}


def test_a_regression_head_is_trained_without_the_task_loss():
    """In the glue preset λ1 is 0, a KL over one output is zero, and hidden states do not involve the head."""
    student_hidden = hidden(3, 4, 5, 6, seed=0, dtype=torch.float32)
    teacher = Outputs(
        normal(4, 1, seed=1, dtype=torch.float32), hidden(3, 4, 5, 6, seed=1, dtype=torch.float32)
    )
    torch.manual_seed(0)
    head = nn.Linear(6, 1)
    student = Outputs(head(student_hidden[-1][:, 0]), student_hidden)
    DistillationLoss.preset("glue")(student, teacher).total.backward()
    assert head.weight.grad.norm() > 0.01


def test_the_head_can_be_chosen():
    student, teacher = Outputs(normal(3, 5, seed=0)), Outputs(normal(3, 5, seed=1))
    parts = DistillationLoss(0, 1, head="regression")(student, teacher)
    assert parts.logit == regression_loss(student.logits, teacher.logits)
    assert parts.logit != logit_loss(student.logits, teacher.logits)


def test_a_regression_per_token_ignores_padding():
    ours, theirs = normal(3, 4, 1, seed=0), normal(3, 4, 1, seed=1)
    loss = DistillationLoss(0, 1, head="regression")
    parts = loss(Outputs(ours), Outputs(theirs), mask=MASK)
    expected = (ours - theirs).square()[MASK.bool()].mean().item()
    assert parts.logit.item() == pytest.approx(expected, rel=1e-12)
    assert loss(Outputs(ours), Outputs(theirs)).logit.item() != pytest.approx(expected, rel=0.01)


def test_the_total_is_float32_or_float64():
    half = normal(3, 5, seed=0, dtype=torch.bfloat16)
    parts = DistillationLoss(1, 1)(Outputs(half), Outputs(half.double()), task_loss=half.mean())
    assert parts.total.dtype == torch.float64
    assert parts.task.dtype == torch.float32


def test_outputs_are_read_by_the_names_that_transformers_uses():
    logits, start, end, states = torch.ones(1), torch.ones(2), torch.ones(3), (torch.ones(4),)
    assert Outputs.of(logits).logits is logits
    assert Outputs.of({"logits": logits, "loss": end}).logits is logits
    both = Outputs.of(SimpleNamespace(logits=logits, hidden_states=states))
    assert both.logits is logits
    assert both.hidden_states is states
    span = Outputs.of(SimpleNamespace(start_logits=start, end_logits=end, hidden_states=None))
    assert span.logits[0] is start
    assert span.logits[1] is end
    assert Outputs.of(span) is span

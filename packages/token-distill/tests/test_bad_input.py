"""Invalid input raises a one-line error that names the offending value."""

import re

import pytest
import torch
from token_distill import DistillationLoss, Outputs, logit_loss, regression_loss, span_loss, token_loss
from token_distill_reference import hidden, normal

LOGITS = normal(3, 4, seed=0)
HIDDEN = hidden(3, 2, 4, 5, seed=0)
MASK = torch.ones(2, 4, dtype=torch.long)


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[-1] = value
    return changed


EXCLUDED = torch.cat([torch.full((3, 1), -torch.inf), LOGITS[:, 1:]], dim=1)  # the first class is excluded

BAD = {
    "logit shapes": (lambda: logit_loss(LOGITS, LOGITS[:2]), "(3, 4)", "(2, 4)"),
    "class counts": (
        lambda: logit_loss(LOGITS, LOGITS[:, :3]),
        "the numbers of classes differ, 4 of the student and 3 of the teacher",
        "same classes",
    ),
    "integer logits": (lambda: logit_loss(LOGITS.long(), LOGITS), "student", "torch.int64"),
    "no examples": (lambda: logit_loss(LOGITS[:0], LOGITS[:0]), "(0, 4)"),
    "logits with one dimension": (lambda: logit_loss(LOGITS[0], LOGITS[0]), "(4,)"),
    "one class": (lambda: logit_loss(LOGITS[:, :1], LOGITS[:, :1]), "regression_loss"),
    "temperature 0": (lambda: logit_loss(LOGITS, LOGITS, 0.0), "0.0"),
    "temperature -1": (lambda: span_loss((LOGITS, LOGITS), (LOGITS, LOGITS), -1.0), "-1.0"),
    "temperature nan": (lambda: logit_loss(LOGITS, LOGITS, float("nan")), "nan"),
    "temperature inf": (lambda: logit_loss(LOGITS, LOGITS, float("inf")), "inf"),
    "temperature 1e20": (lambda: logit_loss(LOGITS, LOGITS, 1e20), "1e+20", "at most 10000"),
    "logit mask shape": (lambda: logit_loss(LOGITS, LOGITS, mask=torch.ones(4)), "(4,)", "(3,)"),
    "logits all masked": (lambda: logit_loss(LOGITS, LOGITS, mask=torch.zeros(3)), "none of 3"),
    "additive mask": (
        lambda: logit_loss(LOGITS, LOGITS, mask=torch.tensor([0, 0, -1e9])),
        "-1e+09|-1000000000",
    ),
    "nan student": (
        lambda: logit_loss(with_value(LOGITS, torch.nan), LOGITS),
        "1 of the student's 12",
        "nan",
    ),
    "nan teacher": (
        lambda: logit_loss(LOGITS, with_value(LOGITS, torch.nan)),
        "1 of the teacher's 12",
        "nan",
    ),
    "class excluded by the student only": (
        lambda: logit_loss(with_value(LOGITS, -torch.inf), LOGITS),
        "student",
        "inf",
    ),
    "nan student where a class is excluded": (
        lambda: logit_loss(with_value(EXCLUDED, torch.nan), EXCLUDED),
        "1 of the student's 12",
    ),
    "nan teacher where a class is excluded": (
        lambda: logit_loss(EXCLUDED, with_value(EXCLUDED, torch.nan)),
        "1 of the teacher's 12",
    ),
    "class excluded by the student only, another by both": (
        lambda: logit_loss(with_value(EXCLUDED, -torch.inf), EXCLUDED),
        "1 of the student's 12",
    ),
    "class excluded by the student, nearly excluded by the teacher": (
        lambda: logit_loss(with_value(LOGITS, -torch.inf), with_value(LOGITS, -1e4)),
        "1 of the student's 12",
    ),
    "every class excluded": (
        lambda: logit_loss(LOGITS, torch.full_like(LOGITS, -torch.inf)),
        "12 of the teacher's 12",
    ),
    "nan in kept examples": (
        lambda: logit_loss(
            with_value(LOGITS, torch.nan),
            LOGITS * torch.tensor([torch.nan, 1, 1, 1]),
            mask=torch.tensor([1, 1, 0]),
        ),
        "2 of the teacher's 8",
    ),
    "span shapes": (lambda: span_loss((LOGITS, LOGITS), (LOGITS, LOGITS[:2])), "end", "(2, 4)"),
    "span logits with three dimensions": (lambda: span_loss((HIDDEN[0],) * 2, (HIDDEN[0],) * 2), "(2, 4, 5)"),
    "three tensors for a span": (lambda: span_loss((LOGITS,) * 3, (LOGITS,) * 2), "got 3 and 2"),
    "span mask": (lambda: span_loss((LOGITS, LOGITS), (LOGITS, LOGITS), mask=torch.ones(4, 3)), "(4, 3)"),
    "span without positions": (
        lambda: span_loss((LOGITS,) * 2, (LOGITS,) * 2, mask=torch.tensor([[1] * 4, [0] * 4, [1] * 4])),
        "example 1",
    ),
    "nan span": (lambda: span_loss((LOGITS, with_value(LOGITS, torch.nan)), (LOGITS, LOGITS)), "end", "nan"),
    "regression shapes": (lambda: regression_loss(LOGITS, LOGITS[:, 0]), "(3, 4)", "(3,)"),
    "nan regression": (lambda: regression_loss(LOGITS, with_value(LOGITS, torch.nan)), "teacher", "nan"),
    "regression mask": (lambda: regression_loss(LOGITS, LOGITS, torch.ones(4)), "(4,)", "(3,)"),
    "regression all masked": (lambda: regression_loss(LOGITS, LOGITS, torch.zeros(3)), "none of 3"),
    "infinite regression": (
        lambda: regression_loss(LOGITS.float() * 1e30, LOGITS.float()),
        "inf",
        "too large",
    ),
    "layer counts": (lambda: token_loss(HIDDEN, HIDDEN[:2], MASK), "3", "2"),
    "embeddings only": (lambda: token_loss(HIDDEN[:1], HIDDEN[:1], MASK), "1 given"),
    "no layers": (lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=[]), "empty"),
    "layer too large": (lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=[0, 2]), "2", "from 0 to 1"),
    "negative layer": (lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=[-1]), "-1"),
    "boolean layers": (lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=[True, False]), "[True, False]"),
    "boolean tensor of layers": (
        lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=torch.tensor([True, False])),
        "tensor(True)",
    ),
    "layer twice": (lambda: token_loss(HIDDEN, HIDDEN, MASK, layers=[1, 1]), "[1, 1]"),
    "hidden shapes": (
        lambda: token_loss(HIDDEN, [h[:, :3] for h in HIDDEN], MASK),
        "layer 0",
        "(2, 4, 5)",
        "(2, 3, 5)",
    ),
    "hidden sizes": (
        lambda: token_loss([h[..., :3] for h in HIDDEN], HIDDEN, MASK),
        "layer 0: the hidden sizes differ, 3 of the student and 5 of the teacher",
        "project one of them",
        "use a teacher of the same hidden size",
    ),
    "layers of different shapes": (
        lambda: token_loss([*HIDDEN[:2], HIDDEN[2][:1]], [*HIDDEN[:2], HIDDEN[2][:1]], MASK),
        "layer 1",
        "(1, 4, 5)",
    ),
    "hidden states with one dimension": (lambda: token_loss([LOGITS[0]] * 2, [LOGITS[0]] * 2, None), "(4,)"),
    "token mask shape": (lambda: token_loss(HIDDEN, HIDDEN, MASK[:1]), "(1, 4)", "(2, 4)"),
    "all tokens masked": (lambda: token_loss(HIDDEN, HIDDEN, 0 * MASK), "none of 8"),
    "token mask values": (lambda: token_loss(HIDDEN, HIDDEN, 3 * MASK), "holds 3"),
    "nan hidden": (
        lambda: token_loss(HIDDEN, [*HIDDEN[:2], with_value(HIDDEN[2], torch.nan)], MASK),
        "layer 1",
        "1 of the teacher's 40",
    ),
    "infinite hidden": (
        lambda: token_loss(HIDDEN, [*HIDDEN[:2], with_value(HIDDEN[2], -torch.inf)], MASK),
        "1 of the teacher's 40",
    ),
    "unknown distance": (lambda: token_loss(HIDDEN, HIDDEN, MASK, distance="l3"), "'l3'", "cosine"),
    "negative weight": (lambda: DistillationLoss(token=-0.5), "token", "-0.5"),
    "nan weight": (lambda: DistillationLoss(logit=float("nan")), "logit", "nan"),
    "all weights zero": (lambda: DistillationLoss(task=0), "all 0"),
    "loss temperature": (lambda: DistillationLoss(temperature=0), "temperature", "0"),
    "loss distance": (lambda: DistillationLoss(distance="l3"), "'l3'", "euclidean"),
    "loss head": (lambda: DistillationLoss(head="qa"), "'qa'", "span"),
    "preset": (lambda: DistillationLoss.preset("imagenet"), "'imagenet'", "squad, glue, gpt2"),
    "no task loss": (lambda: DistillationLoss()(Outputs(LOGITS)), "task_loss", "task=0"),
    "nan task loss": (lambda: DistillationLoss()(Outputs(), task_loss=torch.tensor(torch.nan)), "nan"),
    "number as task loss": (lambda: DistillationLoss()(Outputs(), task_loss=1.5), "task_loss", "1.5"),
    "task loss per example": (lambda: DistillationLoss()(Outputs(), task_loss=torch.ones(3)), "(3,)"),
    "no teacher": (lambda: DistillationLoss(0, 1)(Outputs(LOGITS)), "logits", "logit=0"),
    "no hidden states": (lambda: DistillationLoss(0, 0, 1)(Outputs(LOGITS), Outputs(LOGITS)), "token=0"),
    "one class per token": (
        lambda: DistillationLoss(0, 1)(Outputs(LOGITS[..., None]), Outputs(LOGITS[..., None])),
        "regression_loss",
    ),
    "span against tensor": (
        lambda: DistillationLoss(0, 1)(Outputs((LOGITS, LOGITS)), Outputs(LOGITS)),
        "tuple",
        "Tensor",
    ),
    "single tensors for a span head": (
        lambda: DistillationLoss(0, 1, head="span")(Outputs(LOGITS), Outputs(LOGITS)),
        "pair",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_raises_an_error_that_names_the_value(name):
    call, *expected = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    message = str(error.value)
    assert "\n" not in message
    for words in expected:
        options = words.split("|") if name == "additive mask" else [words]
        assert any(re.search(re.escape(option), message) for option in options), message


def test_the_same_functions_accept_valid_input():
    """Control: it is the invalid values above that raise."""
    logit_loss(LOGITS, LOGITS, mask=torch.tensor([1, 0, 1]))
    span_loss((LOGITS, LOGITS), (LOGITS, LOGITS), mask=torch.ones(3, 4))
    regression_loss(LOGITS, LOGITS)
    token_loss(HIDDEN, HIDDEN, MASK, layers=[1, 0])
    DistillationLoss(1, 1, 1)(Outputs(LOGITS, HIDDEN), Outputs(LOGITS, HIDDEN), task_loss=torch.tensor(1.0))


def test_advice_about_batches_is_given_only_for_different_batches():
    with pytest.raises(ValueError, match="same batch"):
        token_loss(HIDDEN, [h[:1] for h in HIDDEN], None)
    with pytest.raises(ValueError, match="hidden sizes differ") as error:
        token_loss(HIDDEN, [h[..., 1:] for h in HIDDEN], MASK)
    assert "batch" not in str(error.value)


def test_hidden_states_of_another_size_can_be_projected_first():
    """The advice given for different hidden sizes works."""
    small = hidden(3, 2, 4, 3, seed=1)
    projection = torch.nn.Linear(3, 5, dtype=small[0].dtype)
    token_loss([projection(h) for h in small], HIDDEN, MASK).backward()
    assert projection.weight.grad.abs().sum() > 0


def test_student_and_teacher_on_different_devices_raise():
    with pytest.raises(ValueError, match="student is on cpu, the teacher on meta"):
        logit_loss(LOGITS, LOGITS.to("meta"))


def test_the_repr_of_outputs_shows_shapes_only():
    assert repr(Outputs(LOGITS, HIDDEN)) == "Outputs(logits=(3, 4), hidden_states=3 x (2, 4, 5))"
    assert repr(Outputs((LOGITS, LOGITS))) == "Outputs(logits=2 x (3, 4), hidden_states=None)"


def test_outputs_without_logits_or_hidden_states_raise():
    with pytest.raises(TypeError, match="list has no logits"):
        Outputs.of([LOGITS])


def test_outputs_with_half_a_span_raise():
    with pytest.raises(TypeError, match="dict has start_logits but no end_logits"):
        Outputs.of({"start_logits": LOGITS, "hidden_states": HIDDEN})
    with pytest.raises(TypeError, match="dict has end_logits but no start_logits"):
        Outputs.of({"end_logits": LOGITS, "hidden_states": HIDDEN})

"""Distillation works: with few examples, a student learns more from a teacher than from the labels."""

import functools

import pytest
import torch
from token_distill import DistillationLoss, Outputs, Teacher
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY, LENGTH, CLASSES, HIDDEN = 24, 10, 3, 16


class Layer(nn.Module):
    """Residual layer of a given inner width; it combines each token with the mean of all tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(2 * HIDDEN, width), nn.Linear(width, HIDDEN)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # (batch, 1, hidden)
        return states + self.outer(torch.tanh(self.inner(torch.cat([states, mean.expand_as(states)], -1))))


class Classifier(nn.Module):
    """Embedding, two layers and a classification head; the hidden size is the same for all widths."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))

    def forward(self, tokens: Tensor, mask: Tensor) -> Outputs:
        weights = mask[..., None].float()
        states = [self.embedding(tokens)]
        for layer in self.layers:
            states.append(layer(states[-1], weights))
        pooled = (states[-1] * weights).sum(1) / weights.sum(1)
        return Outputs(self.head(pooled), states)


def examples(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and labels; the label is the most frequent kind of token (id modulo number of classes)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    kinds = (F.one_hot(tokens % CLASSES, CLASSES) * mask[..., None]).sum(1)  # (batch, classes)
    return tokens, mask, kinds.argmax(1)


def train(
    model: Classifier, loss: DistillationLoss, data, steps: int, teacher: Teacher | None = None
) -> None:
    tokens, mask, labels = data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    theirs = teacher(tokens, mask) if teacher else None
    for _ in range(steps):
        outputs = model(tokens, mask)
        task = F.cross_entropy(outputs.logits, labels)
        optimizer.zero_grad()
        loss(outputs, theirs, task_loss=task, mask=mask).total.backward()
        optimizer.step()


@torch.no_grad()
def validation_loss(model: Classifier) -> float:
    tokens, mask, labels = examples(2000, seed=999)
    return F.cross_entropy(model(tokens, mask).logits, labels).item()


@functools.cache
def trained_teacher() -> Teacher:
    model = Classifier(width=32, seed=100)
    train(model, DistillationLoss(), examples(1000, seed=100), steps=100)
    return Teacher(model)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_teacher_helps_on_few_examples(seed):
    few = examples(48, seed=seed)
    untrained = Teacher(Classifier(width=32, seed=200))
    results = {}
    for name, loss, teacher in (
        ("task", DistillationLoss(), None),
        ("token and logit", DistillationLoss.preset("glue"), trained_teacher()),
        ("logit", DistillationLoss(0, 1), trained_teacher()),
        ("untrained teacher", DistillationLoss.preset("glue"), untrained),
    ):
        student = Classifier(width=8, seed=seed)
        train(student, loss, few, steps=150, teacher=teacher)
        results[name] = validation_loss(student)
    assert results["token and logit"] < results["task"]
    assert results["token and logit"] < results["logit"]
    assert results["token and logit"] < results["untrained teacher"]  # control: the teacher must be good

"""Reference implementations of the losses with plain loops, and generators of test data."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor


def softmax(logits: list[float], temperature: float) -> list[float]:
    top = max(logits)
    powers = [math.exp((value - top) / temperature) for value in logits]
    return [power / math.fsum(powers) for power in powers]


def kl(student: list[float], teacher: list[float], temperature: float) -> float:
    ours, theirs = softmax(student, temperature), softmax(teacher, temperature)
    terms = [t * (math.log(t) - math.log(s)) for s, t in zip(ours, theirs, strict=True) if t > 0]
    return temperature**2 * math.fsum(terms)


def logit_loss(student: Tensor, teacher: Tensor, temperature: float, mask: Tensor | None = None) -> float:
    """Mean KL of logits (batch, classes) or (batch, tokens, classes)."""
    if mask is None:
        mask = torch.ones(student.shape[:-1])
    rows = zip(student.flatten(0, -2).tolist(), teacher.flatten(0, -2).tolist(), mask.flatten(), strict=True)
    losses = [kl(s, t, temperature) for s, t, counts in rows if counts]
    return math.fsum(losses) / len(losses)


def span_loss(student: list[Tensor], teacher: list[Tensor], temperature: float, mask: Tensor) -> float:
    losses = []
    for ours, theirs in zip(student, teacher, strict=True):
        for s, t, counts in zip(ours, theirs, mask, strict=True):
            keep = [j for j, count in enumerate(counts) if count]
            losses.append(kl([s[j].item() for j in keep], [t[j].item() for j in keep], temperature))
    return math.fsum(losses) / len(losses)


def distance(student: list[float], teacher: list[float], name: str) -> float:
    squared = math.fsum((s - t) ** 2 for s, t in zip(student, teacher, strict=True))
    if name == "euclidean":
        return math.sqrt(squared)
    if name == "mse":
        return squared / len(student)
    product = math.fsum(s * t for s, t in zip(student, teacher, strict=True))
    lengths = math.fsum(s * s for s in student) * math.fsum(t * t for t in teacher)
    return 1 - product / math.sqrt(lengths)


def token_loss(
    student: list[Tensor], teacher: list[Tensor], mask: Tensor, layers: list[int], name: str = "euclidean"
) -> float:
    per_layer = []
    for layer in layers:
        total, tokens = 0.0, 0
        ours, theirs = student[layer + 1].tolist(), teacher[layer + 1].tolist()
        for i, row in enumerate(mask.tolist()):
            for j, counts in enumerate(row):
                if counts:
                    total += distance(ours[i][j], theirs[i][j], name)
                    tokens += 1
        per_layer.append(total / tokens)
    return math.fsum(per_layer) / len(per_layer)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def hidden(count: int, *shape: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [normal(*shape, seed=1000 * seed + index, dtype=dtype) for index in range(count)]


@st.composite
def masks(draw: st.DrawFn, most_examples: int = 4, most_tokens: int = 6) -> Tensor:
    """(batch, tokens): padding anywhere, but at least one token in each example."""
    batch, tokens = draw(st.integers(1, most_examples)), draw(st.integers(1, most_tokens))
    mask = torch.tensor(
        draw(
            st.lists(
                st.lists(st.booleans(), min_size=tokens, max_size=tokens), min_size=batch, max_size=batch
            )
        )
    )
    for row in mask:
        row[draw(st.integers(0, tokens - 1))] = True
    return mask


temperatures = st.floats(0.25, 8.0)
seeds = st.integers(0, 2**20)

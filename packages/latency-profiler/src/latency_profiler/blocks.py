"""Factories for the attention and feed-forward blocks of a BERT layer at any size.

Each factory returns a function ``build(size)`` that can be passed to `profile`. A block computes
LayerNorm(x + branch(x)), as in a post-norm layer. At size 0 only the output bias of the branch remains, so
the time of the block is what is left of a layer's time once the branch has been removed. Weights are random,
because only the time matters.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from latency_profiler._errors import OptionError, require


def transformer_attention(hidden: int = 768, heads: int = 12) -> Callable[[int], nn.Module]:
    """Return a function that builds self-attention blocks; their size is the number of heads.

    The blocks map (batch, sequence, hidden) to the same shape.

    Args:
        hidden: Hidden size.
        heads: Number of heads of the full block; every head has ``hidden // heads`` dimensions at all sizes.

    Raises:
        OptionError: An argument is below 1, or `hidden` is not a multiple of `heads`.
    """
    require(hidden >= 1 and heads >= 1, f"hidden is {hidden} and heads {heads}", "use positive integers")
    if hidden % heads:
        raise OptionError(f"hidden size {hidden} is not a multiple of {heads} heads", "change one of them")

    def build(size: int) -> nn.Module:
        return _Residual(hidden, _Attention(hidden, hidden // heads, size) if size else None)

    return build


def transformer_ffn(hidden: int = 768) -> Callable[[int], nn.Module]:
    """Return a function that builds feed-forward blocks; their size is the intermediate width.

    The blocks map (batch, sequence, hidden) to the same shape.

    Args:
        hidden: Hidden size.

    Raises:
        OptionError: `hidden` is below 1.
    """
    require(hidden >= 1, f"hidden is {hidden}", "use a positive integer")

    def build(size: int) -> nn.Module:
        layers = (nn.Linear(hidden, size), nn.GELU(), nn.Linear(size, hidden)) if size else ()
        return _Residual(hidden, nn.Sequential(*layers) if layers else None)

    return build


class _Residual(nn.Module):
    """LayerNorm(x + branch(x)) or, without a branch, LayerNorm(x + bias)."""

    def __init__(self, hidden: int, branch: nn.Module | None) -> None:
        super().__init__()
        self.branch = branch
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        update: torch.Tensor = self.bias if self.branch is None else self.branch(x)
        return self.norm(x + update)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Self-attention with `heads` heads of `head_size` dimensions, projected back to the hidden size."""

    def __init__(self, hidden: int, head_size: int, heads: int) -> None:
        super().__init__()
        inner = heads * head_size
        self.head_size = head_size
        self.query = nn.Linear(hidden, inner)
        self.key = nn.Linear(hidden, inner)
        self.value = nn.Linear(hidden, inner)
        self.output = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, hidden) to the same shape."""
        query, key, value = (
            project(x)
            .unflatten(-1, (-1, self.head_size))
            .transpose(1, 2)  # (batch, heads, sequence, head size)
            for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

"""A small attention in float64, as oracle for narrower heads: its outputs are recomputed, not derived."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st


@dataclass(frozen=True, eq=False)
class Attention:
    """Multi-head attention on tokens (batch, tokens, hidden), with heads of equal size."""

    query: torch.Tensor  # (H d, hidden), and so on
    key: torch.Tensor
    value: torch.Tensor
    query_bias: torch.Tensor  # (H d,), and so on
    key_bias: torch.Tensor
    value_bias: torch.Tensor
    output: torch.Tensor  # (hidden, H d)
    output_bias: torch.Tensor  # (hidden,)
    heads: int

    def split(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows (batch, tokens, H d) by head, (batch, H, tokens, d)."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """Return the queries, (batch, H, tokens, d)."""
        return self.split(x @ self.query.T + self.query_bias)

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        """Return the keys, (batch, H, tokens, d)."""
        return self.split(x @ self.key.T + self.key_bias)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output matrix, (batch, tokens, H d), for given queries and keys."""
        scores = q @ k.mT / q.shape[-1] ** 0.5
        values = self.split(x @ self.value.T + self.value_bias)
        return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the output matrix, (batch, tokens, H d)."""
        return self.mixed(self.queries(x), self.keys(x), x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs, (batch, tokens, hidden)."""
        return self.inputs(x) @ self.output.T + self.output_bias

    def with_heads(self, heads: int, **tensors: torch.Tensor) -> "Attention":
        """Return an attention with another number of heads and other tensors."""
        return replace(self, heads=heads, **tensors)


@dataclass(frozen=True, eq=False)
class Case:
    """An attention with tokens, and their weights."""

    attention: Attention
    tokens: torch.Tensor  # (batch, tokens, hidden)
    weights: torch.Tensor  # (batch, tokens)


def attention_case(
    seed: int, heads: int = 4, size: int = 6, hidden: int = 20, weighted: bool = False
) -> Case:
    """Make an attention on correlated tokens, whose heads have directions of very different importance."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def rows() -> torch.Tensor:
        mixing = torch.block_diag(*(normal(size, size) for _ in range(heads)))
        scales = normal(heads * size).exp()[:, None]
        return mixing @ (scales * normal(heads * size, hidden)) / hidden

    width = heads * size
    rotation = torch.block_diag(*(torch.linalg.qr(normal(size, size)).Q for _ in range(heads)))
    attention = Attention(
        query=rows(),
        key=rows(),
        value=rows(),
        query_bias=0.3 * normal(width),
        key_bias=0.3 * normal(width),
        value_bias=normal(width),
        output=(normal(hidden, width) * normal(width).exp()) @ rotation,
        output_bias=normal(hidden),
        heads=heads,
    )
    tokens = (
        normal(30, 12, hidden // 2) @ normal(hidden // 2, hidden)
        + 0.2 * normal(30, 12, hidden)
        + normal(hidden)
    )
    weights = normal(30, 12).exp() if weighted else torch.ones(30, 12, dtype=torch.float64)
    return Case(attention, tokens, weights)


def cases() -> st.SearchStrategy[Case]:
    """Return a strategy for attentions of many shapes."""
    return st.builds(
        attention_case,
        st.integers(0, 2**32 - 1),
        heads=st.integers(1, 5),
        size=st.integers(1, 7),
        hidden=st.integers(4, 24),
        weighted=st.booleans(),
    )


def random_metric(rows: int, seed: int) -> torch.Tensor:
    """Return a positive definite matrix (rows, rows) with eigenvalues of very different size."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(rows, rows, generator=generator, dtype=torch.float64)
    factor *= torch.randn(rows, generator=generator, dtype=torch.float64).exp()
    metric = factor @ factor.T
    return metric / metric.diagonal().mean() + 0.1 * torch.eye(rows, dtype=torch.float64)

"""Moments of the queries and keys of attentions, which decide what narrower heads keep of the scores.

For each head, q and k are the queries and keys of all tokens, before the scaling, and a and c are the loss
gradients there. Tokens count by their gradients: with w = 0.9 ‖a‖² / mean + 0.1, the second moment of the
queries is Σ w q qᵀ / Σ w; likewise for the keys with c. Since w is linear in ‖a‖², the sums with and without
‖a‖² are added up in one pass.
"""

from dataclasses import dataclass, field

import torch

from ziplm.stages.fisher import SHARE, TOKENS_PER_COLUMN, ScoreMoments


@dataclass
class _Sums:
    """Sums over tokens for the queries or the keys of one attention, by head, in float64."""

    tokens: int = 0
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, rows: torch.Tensor, gradients: torch.Tensor) -> None:
        """Add tokens: rows and the gradients there, (heads, tokens, d) each."""
        squares = gradients.square().sum(-1, keepdim=True)  # (heads, tokens, 1)
        weighted = squares * rows
        self._add(
            len(rows[0]),
            {
                "mean": rows.sum(1),
                "weighted mean": weighted.sum(1),
                "second": rows.mT @ rows,
                "weighted second": rows.mT @ weighted,
                "squares": squares.sum((1, 2)),
                "fourth powers": squares.square().sum((1, 2)),
            },
        )

    def merge(self, other: "_Sums") -> None:
        """Add the sums of another process."""
        self._add(other.tokens, other.values)

    def _add(self, tokens: int, values: dict[str, torch.Tensor]) -> None:
        self.tokens += tokens
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0) + value

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the second moments (heads, d, d) and the means (heads, d)."""
        total, values = self.tokens, self.values
        mean_square = values["squares"] / total
        # w = uniform + scale ‖a‖², whose mean over tokens is 1
        scale = torch.where(mean_square > 0, SHARE / mean_square.clamp(min=1e-300), 0.0)
        uniform = torch.where(mean_square > 0, 1 - SHARE, 1.0)
        squared = uniform**2 * total + 2 * uniform * scale * values["squares"]
        squared = squared + scale**2 * values["fourth powers"]  # Σ w²
        few = total**2 / squared < TOKENS_PER_COLUMN * values["mean"].shape[1]
        uniform, scale = torch.where(few, 1.0, uniform), torch.where(few, 0.0, scale)
        mean = uniform[:, None] * values["mean"] + scale[:, None] * values["weighted mean"]
        second = uniform[:, None, None] * values["second"] + scale[:, None, None] * values["weighted second"]
        return (second + second.mT) / (2 * total), mean / total


class ScoreSums:
    """Adds up what `ScoreMoments` needs of one attention, batch by batch."""

    def __init__(self) -> None:
        self._queries, self._keys = _Sums(), _Sums()

    def add(
        self, queries: torch.Tensor, keys: torch.Tensor, at_queries: torch.Tensor, at_keys: torch.Tensor
    ) -> None:
        """Add the tokens of a batch: queries, keys and the gradients there, (tokens, heads, d) each."""
        # In float64, since keys may have a mean that is far larger than their spread, and it is subtracted.
        by_head = [rows.cpu().double().transpose(0, 1) for rows in (queries, keys, at_queries, at_keys)]
        self._queries.add(by_head[0], by_head[2])
        self._keys.add(by_head[1], by_head[3])

    def merge(self, other: "ScoreSums") -> None:
        """Add the sums of another process."""
        self._queries.merge(other._queries)
        self._keys.merge(other._keys)

    def result(self) -> ScoreMoments:
        """Return the moments over all tokens."""
        queries, _ = self._queries.moments()
        keys, key_mean = self._keys.moments()
        return ScoreMoments(queries, keys, key_mean)

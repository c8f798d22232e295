"""The fisher: second moments of the loss gradients at each branch's output, and of queries and keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch

from ziplm.files import damaged, write_tensors

SHARE = 0.9  # share of gradients in token weights and in the selection matrix; the rest is uniform
TOKENS_PER_COLUMN = 0.25  # minimum effective number of tokens per column for weighted moments


class ScoreMoments(NamedTuple):
    """Moments of the queries and keys of one attention and of the loss gradients there, by head.

    Attributes:
        queries: second moments of the queries, weighted by token, (heads, d, d).
        keys: second moments of the keys, likewise.
        key_mean: means of the keys, (heads, d).
    """

    queries: torch.Tensor
    keys: torch.Tensor
    key_mean: torch.Tensor


@dataclass(frozen=True)
class Fisher:
    """Second moments of the gradient g of the log-probability at each branch's output, by branch name.

    Attributes:
        gamma: Γ = E[g gᵀ], (hidden, hidden): which directions of the output matter to the loss.
        squares: ‖g‖² of every token that is not padding, (tokens,), in the order of `Task.batches`: which
            tokens matter.
        scores: moments of queries and keys, of the attentions whose heads may become narrower.
    """

    gamma: Mapping[str, torch.Tensor]
    squares: dict[str, torch.Tensor]
    scores: dict[str, ScoreMoments] = field(default_factory=dict)

    def selection_matrix(self, name: str) -> torch.Tensor:
        """Return the matrix that weights errors when groups are chosen, (hidden, hidden), mean diagonal 1."""
        gamma = self.gamma[name]
        identity = torch.eye(len(gamma), dtype=gamma.dtype)
        scale = float(gamma.diagonal().mean())
        return SHARE * gamma / scale + (1 - SHARE) * identity if scale > 0 else identity

    def token_weights(self, name: str, columns: int) -> tuple[torch.Tensor | None, int]:
        """Return the weights of all tokens, (tokens,), and the effective number of tokens.

        The weights are None (equal weights) if the effective number of tokens is too small for that many
        columns. A handful of tokens with huge gradients, such as the first position in some decoders, can
        cause this.
        """
        squares = self.squares[name].double()
        mean = float(squares.mean())
        if mean <= 0:
            return None, len(squares)
        weights = SHARE * squares / mean + (1 - SHARE)
        effective = int(weights.sum().square() / weights.square().sum())
        if effective < TOKENS_PER_COLUMN * columns:
            return None, len(squares)
        return weights, effective

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of Γ of a branch, without reading it if it is on disk."""
        gamma = self.gamma
        return gamma.shape(name) if isinstance(gamma, _StoredTensors) else tuple(gamma[name].shape)

    def save(self, path: Path) -> None:
        """Write the fisher as safetensors, completely or not at all."""
        tensors = {
            f"{kind}.{name}": value
            for kind in ("gamma", "squares")
            for name, value in getattr(self, kind).items()
        }
        for name, moments in self.scores.items():
            tensors |= {f"{kind}.{name}": value for kind, value in moments._asdict().items()}
        write_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path) -> "Fisher":
        """Read a file written by `save`; each matrix of `gamma` stays on disk until it is needed."""
        scores = {kind: dict(_StoredTensors(path, f"{kind}.")) for kind in ScoreMoments._fields}
        if len({tuple(tensors) for tensors in scores.values()}) > 1:
            raise damaged(path)
        return cls(
            _StoredTensors(path, "gamma."),
            dict(_StoredTensors(path, "squares.")),
            {name: ScoreMoments(*(tensors[name] for tensors in scores.values())) for name in scores["keys"]},
        )


class _StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of a file whose names start with `prefix`, read on each access and not kept in memory.

    Raises BadRun if the file is damaged.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        with self._opened() as file:
            names: list[str] = file.keys()
        self._names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        with self._opened() as file:
            tensor: torch.Tensor = file.get_tensor(self._prefix + name)
            if not tensor.isfinite().all():
                raise damaged(self._path)
            return tensor.clone()  # the file may be replaced later

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, from the header of the file."""
        if name not in self._names:
            raise KeyError(name)
        with self._opened() as file:
            return tuple(file.get_slice(self._prefix + name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safetensors.safe_open(self._path, "pt") as file:
                yield file
        except (FileNotFoundError, safetensors.SafetensorError) as error:
            raise damaged(self._path) from error

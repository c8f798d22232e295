"""The loss metric: what the loss feels of what modules say, on a file between two runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file

from ziplm.errors import BadRun
from ziplm.files import written_whole

SHARE = 0.9  # of the loss metric in weights and metrics; the rest treats all tokens and directions alike
TOKENS_PER_COLUMN = 0.25  # effective tokens below which weights would leave too few to go by


@dataclass(frozen=True)
class LossMetric:
    """What the loss feels, by name of the module.

    Attributes:
        gamma: Γ = E[g gᵀ], (hidden, hidden).
        squares: ‖g‖² of every token that is not padding, (tokens,), in the order of `Task.batches`.
    """

    gamma: Mapping[str, torch.Tensor]
    squares: dict[str, torch.Tensor]

    def selection(self, name: str) -> torch.Tensor:
        """The metric under which columns are chosen, (hidden, hidden), with a mean diagonal of 1."""
        gamma = self.gamma[name]
        identity = torch.eye(len(gamma), dtype=gamma.dtype)
        size = float(gamma.diagonal().mean())
        return SHARE * gamma / size + (1 - SHARE) * identity if size > 0 else identity

    def token_weights(self, name: str, columns: int) -> tuple[torch.Tensor | None, int]:
        """Weights of tokens (tokens,), and how many tokens they amount to; None where these are too few.

        A handful of tokens with huge gradients, such as the first position of some decoders, would leave
        nothing to determine that many columns by.
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

    def save(self, path: Path) -> None:
        """Write as safetensors, whole or not at all."""
        tensors = {
            f"{kind}.{name}": value
            for kind in ("gamma", "squares")
            for name, value in getattr(self, kind).items()
        }
        with written_whole(path) as temporary:
            save_file(tensors, temporary)

    @classmethod
    def load(cls, path: Path) -> "LossMetric":
        """Read what `save` wrote; `gamma` stays on its file, and is read when it is asked for."""
        gamma = _Stored(path, "gamma.")
        squares = _Stored(path, "squares.")
        return cls(gamma, dict(squares))


class _Stored(Mapping[str, torch.Tensor]):
    """Tensors of a file whose names begin with `prefix`, without it: read one by one, and not kept.

    Raises BadRun if the file is damaged.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        with self._opened() as file:
            names: list[str] = file.keys()
        self._names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._opened() as file:
            tensor: torch.Tensor = file.get_tensor(self._prefix + name)
            return tensor.clone()  # the file may be replaced

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safetensors.safe_open(self._path, "pt") as file:
                yield file
        except (OSError, safetensors.SafetensorError) as error:
            raise BadRun(f"{self._path} is damaged", "delete it and run the command again") from error

"""Skipping the first layers of a model by replaying a remembered hidden state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ziplm.architectures.base import Architecture


@contextmanager
def replayed(
    architecture: Architecture, layers: list[nn.Module], start: int, state: torch.Tensor | None
) -> Iterator[None]:
    """While open, skip the layers before `start`, and give it `state` as input; None if `start` is 0."""

    def returned(hidden: torch.Tensor) -> Any:
        return (hidden,) if architecture.declaration.layer_returns_tuple else hidden

    def hand_on(hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        return returned(hidden)

    def recall(*_: Any, **__: Any) -> Any:
        assert state is not None
        return returned(state)

    skipped = layers[:start]
    try:
        for layer in skipped:
            layer.forward = recall if layer is skipped[-1] else hand_on
        yield
    finally:
        for layer in skipped:
            layer.__dict__.pop("forward", None)

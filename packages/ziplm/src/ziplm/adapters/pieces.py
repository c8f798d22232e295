"""Modules out of modules: a part of a layer by itself, and copies that share all weights."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from transformers import DynamicCache

Kind = Literal["attention", "ffn"]
KINDS: tuple[Kind, Kind] = ("attention", "ffn")


class Block(nn.Module):
    """One module of a layer as a module of torch, for engines that want one."""

    def __init__(
        self,
        run: Callable[..., torch.Tensor],
        layer: nn.Module,
        kind: Kind,
        past: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.run, self.layer, self.kind = run, layer, kind
        self.cache = None if past is None else DynamicCache()
        if past is not None and past.shape[1]:
            with torch.inference_mode():
                run(layer, kind, past, cache=self.cache)
        held: list[Any] = [] if self.cache is None else self.cache.layers
        self._held = [(place, place.keys, place.values) for place in held]

    def forward(self, hidden: torch.Tensor, mask: object = None) -> torch.Tensor:
        """(batch, tokens, hidden) -> (batch, tokens, hidden)."""
        if self.cache is not None:
            # Keys are added by making longer tensors; those that were held before are still as they were. To
            # put them back takes a microsecond, and the clock is running.
            del self.cache.layers[len(self._held) :]
            for place, keys, values in self._held:
                place.keys, place.values = keys, values
        return self.run(self.layer, self.kind, hidden, mask, self.cache)


def structure_copy(module: nn.Module) -> nn.Module:
    """A copy of a tree of modules that shares all parameters and buffers, without hooks."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = {
        name: type(value)() if "_hooks" in name and isinstance(value, dict) else value
        for name, value in module.__dict__.items()
    }
    copy.__dict__["_parameters"] = module._parameters.copy()
    copy.__dict__["_buffers"] = module._buffers.copy()
    copy.__dict__["_modules"] = {
        name: None if child is None else structure_copy(child) for name, child in module._modules.items()
    }
    return copy

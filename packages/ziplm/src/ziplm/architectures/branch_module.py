"""One branch of a layer as a module of its own, and copies of modules that share all weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache


class BranchModule(nn.Module):
    """One branch of a layer as a torch module of its own, for engines that need one.

    Args:
        run: computes the residual stream after the branch: (layer, kind, hidden, mask, cache) to hidden.
        layer: the layer that contains the branch.
        kind: kind of the branch.
        past: (batch, past tokens, hidden), earlier inputs whose keys and values are in the cache when a call
            starts; None for no cache.
    """

    def __init__(
        self,
        run: Callable[..., torch.Tensor],
        layer: nn.Module,
        kind: str,
        past: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.run, self.layer, self.kind = run, layer, kind
        self.cache = None if past is None else DynamicCache()
        if past is not None and past.shape[1]:
            with torch.inference_mode():
                run(layer, kind, past, cache=self.cache)
        held: list[Any] = [] if self.cache is None else self.cache.layers
        self._held = [(cached, cached.keys, cached.values) for cached in held]

    def forward(self, hidden: torch.Tensor, mask: object = None) -> torch.Tensor:
        """(batch, tokens, hidden) -> (batch, tokens, hidden)."""
        if self.cache is not None:
            # The cache grows by replacing its tensors with longer ones, so that the original tensors are
            # unchanged. Putting them back takes a microsecond, which matters because this call is timed.
            del self.cache.layers[len(self._held) :]
            for cached, keys, values in self._held:
                cached.keys, cached.values = keys, values
        return self.run(self.layer, self.kind, hidden, mask, self.cache)


def structure_copy(module: nn.Module) -> nn.Module:
    """Copy a tree of modules without hooks; the copy shares all parameters and buffers."""
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

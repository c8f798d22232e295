"""One branch of a layer as a module of its own, and copies of modules that share all weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from ziplm.architectures.zip_declaration import BranchSpec


class BranchModule(nn.Module):
    """One branch of a layer as a torch module of its own, for engines that need one.

    Args:
        spec: where the branch is within the layer.
        layer: the layer that contains the branch.
        inputs: returns further keyword arguments of an attention's body, given the input and the number of
            tokens in the cache; None for an FFN.
        past: (batch, past tokens, hidden), earlier inputs whose keys and values are in the cache when a call
            starts; None for no cache.
    """

    def __init__(
        self,
        spec: BranchSpec,
        layer: nn.Module,
        inputs: Callable[[torch.Tensor, int], dict[str, Any]] | None = None,
        past: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self._inputs = spec, layer, inputs
        self._past = 0 if past is None else past.shape[1]
        self._further: tuple[torch.Size, dict[str, Any]] | None = None
        self.cache = None if past is None else DynamicCache()
        if past is not None and past.shape[1]:
            with torch.inference_mode():
                self._run(past, None, {} if inputs is None else inputs(past, 0))
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
        return self._run(hidden, mask, self._further_inputs(hidden))

    def _further_inputs(self, hidden: torch.Tensor) -> dict[str, Any]:
        """Return position embeddings and the like, which a model computes once for all of its layers.

        They are kept for calls of the same shape, so that they are not timed with every branch.
        """
        if self._inputs is None:
            return {}
        if self._further is None or self._further[0] != hidden.shape:
            with torch.no_grad():
                self._further = hidden.shape, self._inputs(hidden, self._past)
        return self._further[1]

    def _run(self, hidden: torch.Tensor, mask: object, further: dict[str, Any]) -> torch.Tensor:
        spec, layer = self.spec, self.layer
        stream = hidden
        if spec.norm_before is not None:
            hidden = layer.get_submodule(spec.norm_before)(hidden)
        if spec.part == "attention":
            cached = {} if self.cache is None else {"past_key_values": self.cache}
            made = layer.get_submodule(spec.body)(hidden, attention_mask=mask, **cached, **further)[0]
        else:
            made = layer.get_submodule(spec.body)(hidden)
        if not spec.output_in_body:
            made = layer.get_submodule(spec.output)(made)
        stream = stream + made
        after: torch.Tensor = (
            stream if spec.norm_after is None else layer.get_submodule(spec.norm_after)(stream)
        )
        return after


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

"""Code shared by the shrunk models of all architectures.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

import torch
from torch import nn

ZIP_VERSION = 1


def check_sizes(config: Any, largest_width: int) -> None:
    """Raise ValueError unless `zip_heads` and `zip_widths` of a config fit its dense sizes.

    A missing list is replaced by the sizes of the dense model.
    """
    if config.zip_version != ZIP_VERSION:
        raise ValueError(f"zip_version is {config.zip_version!r}, but this code reads version {ZIP_VERSION}")
    if config.add_cross_attention or config.is_encoder_decoder:
        raise ValueError("add_cross_attention is on, but models that attend to an encoder cannot be shrunk")
    layers = config.num_hidden_layers
    for name, largest in (("zip_heads", config.num_attention_heads), ("zip_widths", largest_width)):
        if getattr(config, name) is None:
            setattr(config, name, [largest] * layers)
        sizes = getattr(config, name)
        if not isinstance(sizes, list) or len(sizes) != layers:
            raise ValueError(f"{name} is {sizes!r}, but must be a list of {layers} sizes, one for each layer")
        if not all(type(size) is int and 0 <= size <= largest for size in sizes):
            raise ValueError(f"{name} is {sizes!r}, but all sizes must be whole numbers from 0 to {largest}")


class Constant(nn.Module):
    """Replaces the output matrix of a removed branch: returns its bias for every input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., size)."""
        return self.bias.expand_as(hidden_states)

"""Watching a branch in a forward pass: inputs of its output matrix, and the stream before and after it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture, Branch


class Seen(NamedTuple):
    """What a branch did in one forward pass.

    Attributes:
        inputs: inputs of its output matrix, (batch, tokens, columns); meaningless if it was removed.
        output: its output, (batch, tokens, hidden), which is added to the residual stream.
        before: the residual stream before it, (batch, tokens, hidden).
        after: their sum, before any norm.
    """

    inputs: torch.Tensor
    output: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor


@contextmanager
def watched(
    architecture: Architecture, model: PreTrainedModel, branch: Branch, see: Callable[[Seen], None]
) -> Iterator[None]:
    """While open, call `see` once in every forward pass of the model in eval mode.

    A pre-LN branch reads the stream through a norm of its own, whose input is the stream before it. In a
    post-LN layer, the input of the norm that follows is the stream after it.
    """
    layer, spec = architecture.layers(model)[branch.layer], architecture.spec(model, branch)
    held: list[torch.Tensor] = []

    def before_known(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        held[:] = [arguments[0]]

    def output_known(_: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        if spec.norm_after is None:
            see(Seen(arguments[0], output, held[0], held[0] + output))
            held.clear()
        else:
            held[:] = [arguments[0], output]

    def after_known(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs, output = held
        see(Seen(inputs, output, arguments[0] - output, arguments[0]))
        held.clear()

    with ExitStack() as stack:
        if spec.norm_before is not None:
            norm = layer.get_submodule(spec.norm_before)
            stack.enter_context(norm.register_forward_pre_hook(before_known))
        stack.enter_context(layer.get_submodule(spec.output).register_forward_hook(output_known))
        if spec.norm_after is not None:
            norm = layer.get_submodule(spec.norm_after)
            stack.enter_context(norm.register_forward_pre_hook(after_known))
        yield

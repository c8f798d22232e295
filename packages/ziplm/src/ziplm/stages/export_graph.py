"""The graph that is exported for a model: its inputs, its outputs, and which of their dimensions may vary.

Encoders and heads without a cache take `input_ids`, `attention_mask` and, where the model has them,
`token_type_ids`. Decoders with a language head take `input_ids`, `attention_mask`, `position_ids`, and keys
and values of earlier tokens for each attention that is left.
"""

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ziplm.architectures.registry import architecture_of
from ziplm.errors import UnsupportedModel

BATCH, TOKENS, PAST, TOTAL = "batch", "tokens", "past_tokens", "all_tokens"

# Sizes of the inputs that the graph is traced with. They differ from each other, so that torch does not take
# one for another, and are neither 0 nor 1, for which it would make special cases.
TRACED = {BATCH: 2, TOKENS: 3, PAST: 4, TOTAL: 7, "choices": 5}

OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")
"""Outputs of models that are exported, if there are no others; poolers of bare models are left out."""

Axes = tuple[str | int, ...]
"""The dimensions of a tensor: a name where they may vary, a number where they are fixed."""


class Graph(nn.Module):
    """A model as a function from tensors to tensors, for export.

    Attributes:
        model: the model.
        inputs: the dimensions of each input, in order.
        outputs: names of the outputs, in order.
    """

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Axes]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs: tuple[str, ...] = ()

    @abstractmethod
    def example(self) -> dict[str, Any]:
        """Return arguments of `forward` to trace it with."""

    @abstractmethod
    def dynamic_shapes(self) -> dict[str, Any]:
        """Return which dimensions of each argument of `forward` may vary, in torch's notation."""

    def zeros(self, name: str) -> torch.Tensor:
        """Return an input of the size that is traced; an attention mask has only ones."""
        shape = [TRACED[axis] if isinstance(axis, str) else axis for axis in self.inputs[name]]
        if name.startswith("past"):
            return torch.zeros(shape)
        return torch.full(shape, int(name == "attention_mask"), dtype=torch.int64)

    def varying(self, name: str) -> dict[int, Any]:
        """Return which dimensions of an input may vary."""
        return {
            index: torch.export.Dim.AUTO
            for index, axis in enumerate(self.inputs[name])
            if isinstance(axis, str)
        }


class TextGraph(Graph):
    """A model without a cache, from tokens to the outputs of its head."""

    def __init__(self, model: PreTrainedModel) -> None:
        several = ("choices",) if type(model).__name__.endswith("ForMultipleChoice") else ()
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if has_token_types(model) else [])]
        super().__init__(model, dict.fromkeys(names, (BATCH, *several, TOKENS)))
        with torch.no_grad():
            made = model(**self.example())
        self.outputs = tuple(name for name in OUTPUTS if name in made)

    def example(self) -> dict[str, Any]:
        """Return tokens, all of them the same."""
        return {name: self.zeros(name) for name in self.inputs}

    def dynamic_shapes(self) -> dict[str, Any]:
        """Return batch and tokens, and choices if there are any."""
        return {name: self.varying(name) for name in self.inputs}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Tokens and masks (batch, tokens) -> the outputs in order."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        made = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        return tuple(made[name] for name in self.outputs)


class GeneratingGraph(Graph):
    """A decoder with its cache: several tokens at once, with or without earlier ones.

    Removed attentions have no keys and values. If no attention is left, there is no cache at all: positions
    are an input, so nothing else needs to know how many tokens came before.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        shapes = cache_shapes(model)
        tokens: dict[str, Axes] = {
            "input_ids": (BATCH, TOKENS),
            "attention_mask": (BATCH, TOTAL),
            "position_ids": (BATCH, TOKENS),
        }
        past = dict(zip(cache_names("past_key_values", len(shapes)), shapes, strict=True))
        super().__init__(model, {**tokens, **past})
        self.outputs = ("logits", *cache_names("present", len(shapes)))

    def example(self) -> dict[str, Any]:
        """Return tokens after some earlier ones."""
        tokens = {name: self.zeros(name) for name in list(self.inputs)[:3]}
        past = [self.zeros(name) for name in list(self.inputs)[3:]]
        return {**tokens, "past": past}

    def dynamic_shapes(self) -> dict[str, Any]:
        """Return batch, tokens, earlier tokens, and the sum of both."""
        tokens = {name: self.varying(name) for name in list(self.inputs)[:3]}
        return {**tokens, "past": [self.varying(name) for name in list(self.inputs)[3:]]}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Tokens, masks, positions and the cache -> logits (batch, tokens, vocabulary), longer cache."""
        cache: Any = DynamicCache(list(zip(past[::2], past[1::2], strict=True))) if past else None
        logits = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
        ).logits
        layers = cache.layers if cache is not None else []
        return (logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def graph_of(model: PreTrainedModel) -> Graph:
    """Return the graph to export for a model.

    Raises:
        UnsupportedModel: if the architecture is unknown, or the model cannot be written as a graph.
    """
    architecture_of(model)
    _require_fixed_rotation(model)
    return GeneratingGraph(model) if model.can_generate() else TextGraph(model)


def _require_fixed_rotation(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel if rotary positions change with the length, which torch cannot trace."""
    found = getattr(model.config, "rope_parameters", None) or {}  # in some models, by the type of the layer
    kinds = {each.get("rope_type") for each in (found, *found.values()) if isinstance(each, dict)}
    if changing := kinds & {"dynamic", "longrope"}:
        raise UnsupportedModel(
            f"rotary positions of type {changing.pop()!r} depend on the length and cannot be exported",
            "use the checkpoint itself",
        )


def has_token_types(model: PreTrainedModel) -> bool:
    """Return whether a model tells segments of its input apart, such as question and context."""
    types = getattr(model.config, "type_vocab_size", 0)
    return types > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def cache_shapes(model: PreTrainedModel) -> list[Axes]:
    """Return the dimensions of keys and values of each attention that is left, in the order of the cache."""
    branches = architecture_of(model).branches(model)
    left = sum(branch.groups > 0 for branch in branches if branch.part == "attention")
    token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        cache = model(token, attention_mask=torch.ones_like(token), use_cache=True).past_key_values
    # Keys and values are (batch, heads, tokens, size). A cache that only counts tokens is left out.
    tensors = [tensor for layer in cache.layers[:left] for tensor in (layer.keys, layer.values)]
    return [(BATCH, tensor.shape[1], PAST, tensor.shape[3]) for tensor in tensors]


def cache_names(start: str, tensors: int) -> list[str]:
    """Return the names of keys and values of all attentions, such as ``present.0.key``."""
    return [f"{start}.{index // 2}.{('key', 'value')[index % 2]}" for index in range(tensors)]


@contextmanager
def exportable(model: PreTrainedModel) -> Iterator[None]:
    """While open, the model computes attention by plain matrix products, without gradients and dropout.

    torch's fused attention would add a test for rows without any key to every attention of the graph, which
    takes 4 % of the time of MiniLM in ONNX Runtime. Afterwards, the model is as it was.
    """
    before = [(module, module.training) for module in model.modules()]
    implementation = model.config._attn_implementation
    model.eval()
    # Not by model.set_attn_implementation, which refuses classes that are defined outside of transformers.
    model.config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            yield
    finally:
        model.config._attn_implementation = implementation
        for module, training in before:
            module.training = training


def file_inputs(model: PreTrainedModel, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs by name of a model's exported file without a cache.

    Args:
        model: the model.
        given: inputs by name, with `input_ids` at least; without a mask, no token is padding.
    """
    ids = given["input_ids"]
    default = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if has_token_types(model):
        default["token_type_ids"] = torch.zeros_like(ids)
    return {name: given.get(name, value) for name, value in default.items()}

"""The seam to model families: an adapter says where things are, the pipeline decides what to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from obs_structured import Trace
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ziplm.adapters.pieces import KINDS, Block, Kind, structure_copy
from ziplm.errors import UnsupportedModel, UsageError
from ziplm.models import zip_class

Columns = torch.Tensor | slice
"""Which columns of an output matrix are kept: by number, or the first so many, of which views can be made."""


@dataclass(frozen=True)
class Module:
    """One prunable module: the attention or the feed-forward branch of one layer."""

    layer: int
    kind: Kind
    groups: int
    """Heads or columns that it has; 0 if it was removed."""
    group_size: int
    """Columns of the output matrix to a group: the head size, or 1."""

    @property
    def name(self) -> str:
        """Such as ``layer3.attention``: unique in its model, fit for file names."""
        return f"layer{self.layer}.{self.kind}"


@dataclass(frozen=True)
class StreamPoint:
    """Where the residual stream can be seen: as a positional argument of a module's forward."""

    module: nn.Module
    argument: int


class Adapter(ABC):
    """What ziplm must know of a model family. A new family is a subclass in a file of its own.

    Public methods are final and check what they are given; subclasses answer the private ones.
    """

    model_types: tuple[str, ...]
    """`config.model_type` of the dense and of the shrunk models."""

    @final
    def check(self, model: PreTrainedModel) -> None:
        """Raise UnsupportedModel if this very model cannot be shrunk."""
        if reason := self._unsupported(model):
            raise UnsupportedModel(
                f"this {type(model).__name__} cannot be shrunk: {reason}", "give a plain model"
            )
        self.shrunk_class(model)

    @final
    def modules(self, model: PreTrainedModel) -> list[Module]:
        """All prunable modules in the order of the forward pass, those that were removed with 0 groups."""
        return [
            Module(index, kind, self._groups(layer, kind), self._group_size(model, kind))
            for index, layer in enumerate(self.layers(model))
            for kind in KINDS
        ]

    @final
    def dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        """Heads or columns that each module of that kind has in the dense model."""
        return self._dense_groups(model, kind)

    @final
    def layers(self, model: PreTrainedModel) -> list[nn.Module]:
        """The transformer layers; all else (embeddings, final norm, pooler, head) is fixed."""
        return list(self._layers(model))

    @final
    def fixed_parameters(self, model: PreTrainedModel) -> list[nn.Parameter]:
        """Parameters that pruning never touches: those outside the layers, and the norms within."""
        prunable = set()
        for module in self.modules(model):
            for part in self.parts(model, module).values():
                norms = [norm for norm in part.modules() if isinstance(norm, nn.LayerNorm)]
                kept = {id(parameter) for norm in norms for parameter in norm.parameters()}
                prunable |= {id(parameter) for parameter in part.parameters()} - kept
        return [parameter for parameter in model.parameters() if id(parameter) not in prunable]

    @final
    def output_layer(self, model: PreTrainedModel, module: Module) -> nn.Module:
        """What multiplies by the output matrix: its input is calibrated on, its output joins the stream."""
        return self._output_layer(self.layers(model)[module.layer], module.kind)

    @final
    def weight(self, model: PreTrainedModel, module: Module) -> torch.Tensor:
        """The output matrix as (out, in): (hidden, groups * group_size), a view of the parameter."""
        if module.groups == 0:
            raise UsageError(f"{module.name} was removed and has no weight", "leave it out")
        weight = self.output_layer(model, module).weight
        assert isinstance(weight, torch.Tensor)
        return self._out_in(weight)

    @final
    def bias(self, model: PreTrainedModel, module: Module) -> torch.Tensor:
        """The bias of the output matrix, (hidden,); removed modules have one, too."""
        bias = self.output_layer(model, module).bias
        assert isinstance(bias, torch.Tensor)
        return bias

    @final
    def stream_before(self, model: PreTrainedModel, module: Module) -> StreamPoint:
        """Where the residual stream passes that the module's output is added to.

        The stream after the module is this plus the output of `output_layer`, before any norm.
        """
        return self._stream_before(self.layers(model)[module.layer], module.kind)

    @final
    def norm_after(self, model: PreTrainedModel, module: Module) -> nn.LayerNorm | None:
        """The norm that the whole stream passes through after the module, if it does: post-LN models."""
        return self._norm_after(self.layers(model)[module.layer], module.kind)

    @final
    def language_head(self, model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
        """From last hidden states (..., hidden) to logits (..., vocabulary)."""
        head = self._language_head(model)
        if head is None:
            raise UnsupportedModel(
                f"{type(model).__name__} has no language head",
                "load the model with one, or choose another task",
            )
        return head

    @final
    def block(self, layer: nn.Module, kind: Kind, past: torch.Tensor | None = None) -> nn.Module:
        """A module of a layer with its residual and norms, by itself: hidden states to hidden states.

        It is what a latency table measures. Positional arguments: (batch, tokens, hidden), and what
        `attention_mask` makes.

        Args:
            layer: with the module.
            kind: which of its two.
            past: (batch, past tokens, hidden), what the module has seen before: it then uses a cache, which
                is the same at the start of each call. There may be no past tokens. None: it uses none.
        """
        return Block(self._block, layer, kind, past)

    @final
    def attention_mask(self, model: PreTrainedModel, hidden: torch.Tensor, past: int = 0) -> object:
        """What the model gives its attentions to mask with, if nothing is padding; None if that is nothing.

        Args:
            model: whose settings decide.
            hidden: (batch, tokens, hidden), what they see.
            past: tokens that they have seen before.
        """
        return self._attention_mask(model, hidden, past)

    @final
    def number_caches(self, model: PreTrainedModel) -> None:
        """Let a cache know its length, after `install` has removed attentions from a model that uses one."""
        self._number_caches(model)

    @final
    def state(
        self, model: PreTrainedModel, module: Module, trace: Trace, removed: int
    ) -> dict[str, torch.Tensor]:
        """Parameters of a module with so many groups removed, by their names within the layer.

        The output matrix and its bias come from the trace; of the other matrices, the rows that belong to the
        columns left are copied.
        """
        layer = self.layers(model)[module.layer]
        if (trace.groups, trace.group_size) != (module.groups, module.group_size):
            raise UsageError(
                f"the trace has {trace.groups} groups of {trace.group_size}, but {module.name} has "
                f"{module.groups} of {module.group_size}",
                "prune this model's own matrices",
            )
        bias = self.bias(model, module).detach()
        new_bias = bias + trace.bias_shift(removed).to(bias)
        columns = trace.columns(removed).to(bias.device)
        return self._state(layer, module.kind, columns, trace.weight(removed).to(bias), new_bias)

    @final
    def build(
        self, model: PreTrainedModel, module: Module, trace: Trace, removed: int
    ) -> dict[str, nn.Module]:
        """The parts of a layer that make up the module with so many groups removed, for `install`.

        All that the module keeps (norms, settings) is shared with the model, which is not changed.
        """
        layer = self.layers(model)[module.layer]
        state = self.state(model, module, trace, removed)
        return self._assembled(layer, module.kind, trace.groups - removed, state)

    @final
    def reordered(self, model: PreTrainedModel, module: Module, trace: Trace) -> nn.Module:
        """The module's layer with its groups in reverse order of removal: the last to go comes first."""
        layer = self.layers(model)[module.layer]
        groups = trace.order.flip(0)
        columns = groups[:, None] * module.group_size + torch.arange(module.group_size, device=groups.device)
        weight, bias = self.weight(model, module).detach(), self.bias(model, module).detach()
        columns = columns.flatten().to(weight.device)
        state = self._state(layer, module.kind, columns, weight[:, columns], bias)
        copy = structure_copy(layer)
        for name, part in self._assembled(layer, module.kind, module.groups, state).items():
            setattr(copy, name, part)
        return copy

    @final
    def leading(
        self,
        layer: nn.Module,
        module: Module,
        groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> dict[str, nn.Module]:
        """The parts of a module with its first `groups` groups only, views of the layer's where possible.

        Args:
            layer: such as `reordered` makes.
            module: which of its modules.
            groups: how many to keep, 0 to all.
            weight: (hidden, groups * group_size), instead of the layer's own output matrix.
            bias: (hidden,), instead of its own.
        """
        output = self._output_layer(layer, module.kind)
        assert isinstance(output.bias, torch.Tensor)
        columns = slice(0, groups * module.group_size)
        if weight is None:
            assert isinstance(output.weight, torch.Tensor)
            weight = self._out_in(output.weight.detach())[:, columns]
        state = self._state(
            layer, module.kind, columns, weight, output.bias.detach() if bias is None else bias
        )
        return self._assembled(layer, module.kind, groups, state)

    def _assembled(
        self, layer: nn.Module, kind: Kind, groups: int, state: dict[str, torch.Tensor]
    ) -> dict[str, nn.Module]:
        """Parts of a layer with another number of groups around tensors that exist already."""
        layer = structure_copy(layer)
        with torch.device("meta"):
            self._resize(layer, kind, groups)
        parts = {name: getattr(layer, name) for name in self._parts(kind)}
        for name, part in parts.items():
            own = {
                key.removeprefix(f"{name}."): value
                for key, value in state.items()
                if key.startswith(f"{name}.")
            }
            part.load_state_dict(own, strict=False, assign=True)
            part.train(layer.training)
        return parts

    @final
    def install(self, model: PreTrainedModel, module: Module, parts: dict[str, nn.Module]) -> None:
        """Put parts made by `build` (or taken by `parts`) into their layer."""
        for name, part in parts.items():
            setattr(self.layers(model)[module.layer], name, part)

    @final
    def parts(self, model: PreTrainedModel, module: Module) -> dict[str, nn.Module]:
        """The parts of a layer that make up the module as it is."""
        layer = self.layers(model)[module.layer]
        return {name: getattr(layer, name) for name in self._parts(module.kind)}

    @final
    def shrunk_class(self, model: PreTrainedModel) -> type[PreTrainedModel]:
        """The class of the shrunk model."""
        name = type(model).__name__.removeprefix("Zip")
        if (found := zip_class(f"Zip{name}")) is None:
            raise UnsupportedModel(f"there is no shrunk form of {name}", "load the model with another head")
        return found

    @abstractmethod
    def _unsupported(self, model: PreTrainedModel) -> str | None:
        """Why this model cannot be shrunk, if so."""

    @abstractmethod
    def _layers(self, model: PreTrainedModel) -> Iterator[nn.Module]:
        """The transformer layers."""

    @abstractmethod
    def _groups(self, layer: nn.Module, kind: Kind) -> int:
        """Heads or columns left."""

    @abstractmethod
    def _group_size(self, model: PreTrainedModel, kind: Kind) -> int:
        """Columns to a group."""

    @abstractmethod
    def _dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        """Heads or columns of the dense model."""

    @abstractmethod
    def _output_layer(self, layer: nn.Module, kind: Kind) -> nn.Module:
        """The linear layer of the output matrix."""

    @abstractmethod
    def _out_in(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight as (out, in); its own inverse."""

    @abstractmethod
    def _stream_before(self, layer: nn.Module, kind: Kind) -> StreamPoint:
        """Where the stream can be seen."""

    @abstractmethod
    def _norm_after(self, layer: nn.Module, kind: Kind) -> nn.LayerNorm | None:
        """The norm over the sum of stream and output, if the stream goes on normalised."""

    @abstractmethod
    def _language_head(self, model: PreTrainedModel) -> nn.Module | None:
        """What makes logits of last hidden states."""

    @abstractmethod
    def _block(
        self,
        layer: nn.Module,
        kind: Kind,
        hidden: torch.Tensor,
        mask: object = None,
        cache: DynamicCache | None = None,
    ) -> torch.Tensor:
        """The stream after a module, given the stream before it."""

    def _attention_mask(self, model: PreTrainedModel, hidden: torch.Tensor, past: int) -> object:
        """None where all tokens see each other."""
        return None

    def _number_caches(self, model: PreTrainedModel) -> None:
        """Nothing to do where there is no cache."""
        return

    @abstractmethod
    def _parts(self, kind: Kind) -> tuple[str, ...]:
        """Names of the children of a layer that make up a module."""

    @abstractmethod
    def _state(
        self, layer: nn.Module, kind: Kind, columns: Columns, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Parameters of the module with `columns` kept; none but the bias if there are no columns."""

    @abstractmethod
    def _resize(self, layer: nn.Module, kind: Kind, groups: int) -> None:
        """Give the module of a layer so many groups, with weights that are not set."""

"""The interface to model architectures: they say where things are, the stages decide what to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ziplm.architectures.branch_module import BranchModule
from ziplm.errors import UnsupportedModel, UsageError

Kind = Literal["attention", "ffn"]
KINDS: tuple[Kind, Kind] = ("attention", "ffn")

Columns = torch.Tensor | slice
"""Columns of an output matrix to keep: their indices, or a leading slice, which allows views."""


@dataclass(frozen=True)
class Branch:
    """One prunable branch: the attention or the FFN of one layer.

    Attributes:
        layer: index of the layer.
        kind: "attention" or "ffn".
        groups: number of heads or FFN columns; 0 if the branch was removed.
        group_size: columns of the output matrix per group: the head dimension, or 1.
    """

    layer: int
    kind: Kind
    groups: int
    group_size: int

    @property
    def name(self) -> str:
        """Name such as ``layer3.attention``, unique in its model and valid as a file name."""
        return f"layer{self.layer}.{self.kind}"

    @property
    def columns(self) -> int:
        """Columns of the output matrix."""
        return self.groups * self.group_size


@dataclass(frozen=True)
class StreamPoint:
    """A place where the residual stream is visible: a positional argument of a module's forward."""

    module: nn.Module
    argument: int


class Architecture(ABC):
    """All that ziplm needs to know about a model architecture. A new one is a subclass in a file of its own.

    Public methods are final and check their arguments; subclasses implement the private ones.
    """

    model_types: tuple[str, ...]
    """`config.model_type` of the dense and of the shrunk models."""

    @final
    def check(self, model: PreTrainedModel) -> None:
        """Raise UnsupportedModel if this particular model cannot be pruned."""
        if reason := self._unsupported(model):
            raise UnsupportedModel(
                f"this {type(model).__name__} cannot be shrunk: {reason}",
                "load it with the architecture's default is_decoder and add_cross_attention",
            )
        self.shrunk_class(model)

    @final
    def branches(self, model: PreTrainedModel) -> list[Branch]:
        """Return all prunable branches in the order of the forward pass; removed ones have 0 groups."""
        return [
            Branch(index, kind, self._groups(layer, kind), self._group_size(model, kind))
            for index, layer in enumerate(self.layers(model))
            for kind in KINDS
        ]

    @final
    def dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        """Return the number of heads or columns that branches of that kind have in the dense model."""
        return self._dense_groups(model, kind)

    @final
    def layers(self, model: PreTrainedModel) -> list[nn.Module]:
        """Return the transformer layers. Everything else (embeddings, final norm, pooler, head) is fixed."""
        return list(self._layers(model))

    @final
    def output_layer(self, model: PreTrainedModel, branch: Branch) -> nn.Module:
        """Return the linear layer of the output matrix, whose result is added to the residual stream."""
        return self._output_layer(self.layers(model)[branch.layer], branch.kind)

    @final
    def weight(self, model: PreTrainedModel, branch: Branch) -> torch.Tensor:
        """Return the output matrix as (out, in) = (hidden, groups * group_size), a view of the parameter."""
        if branch.groups == 0:
            raise UsageError(f"{branch.name} was removed and has no weight", "leave it out")
        weight = self.output_layer(model, branch).weight
        assert isinstance(weight, torch.Tensor)
        return self._out_in(weight)

    @final
    def bias(self, model: PreTrainedModel, branch: Branch) -> torch.Tensor:
        """Return the bias of the output matrix, (hidden,); removed branches have one, too."""
        bias = self.output_layer(model, branch).bias
        assert isinstance(bias, torch.Tensor)
        return bias

    @final
    def stream_before(self, model: PreTrainedModel, branch: Branch) -> StreamPoint:
        """Return where to see the residual stream to which the branch's output is added.

        The stream after the branch is this plus the output of `output_layer`, before any norm.
        """
        return self._stream_before(self.layers(model)[branch.layer], branch.kind)

    @final
    def norm_after(self, model: PreTrainedModel, branch: Branch) -> nn.LayerNorm | None:
        """Return the norm that the whole stream passes after the branch (post-LN models), or None."""
        return self._norm_after(self.layers(model)[branch.layer], branch.kind)

    @final
    def language_head(self, model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function from last hidden states (..., hidden) to logits (..., vocabulary)."""
        head = self._language_head(model)
        if head is None:
            raise UnsupportedModel(
                f"{type(model).__name__} has no language head",
                "load the model with one, or choose another task",
            )
        return head

    @final
    def branch_module(self, layer: nn.Module, kind: Kind, past: torch.Tensor | None = None) -> nn.Module:
        """Return a branch of a layer with its residual connection and norms as a module of its own.

        Latency tables measure such modules. Positional arguments: (batch, tokens, hidden), and the result of
        `attention_mask`.

        Args:
            layer: the layer that contains the branch.
            kind: kind of the branch.
            past: earlier inputs, (batch, past tokens, hidden), with which the cache is filled before every
                call; the number of past tokens may be 0. None for no cache.
        """
        return BranchModule(self._run_branch, layer, kind, past)

    @final
    def attention_mask(self, model: PreTrainedModel, hidden: torch.Tensor, past: int = 0) -> object:
        """Return the mask that the model passes to its attentions if nothing is padding; None for no mask.

        Args:
            model: the model, whose settings decide.
            hidden: (batch, tokens, hidden), the inputs.
            past: number of earlier tokens in the cache.
        """
        return self._attention_mask(model, hidden, past)

    @final
    def number_caches(self, model: PreTrainedModel) -> None:
        """Renumber the attentions' cache layers; call it after removing attentions from a decoder."""
        self._number_caches(model)

    @final
    def parts(self, model: PreTrainedModel, branch: Branch) -> dict[str, nn.Module]:
        """Return the children of the layer that make up the branch, by name."""
        layer = self.layers(model)[branch.layer]
        return {name: getattr(layer, name) for name in self._parts(branch.kind)}

    @final
    def install(self, model: PreTrainedModel, branch: Branch, parts: dict[str, nn.Module]) -> None:
        """Put the parts of a branch, from `parts` or from `ziplm.architectures.surgery`, into their layer."""
        for name, part in parts.items():
            setattr(self.layers(model)[branch.layer], name, part)

    @final
    def shrunk_class(self, model: PreTrainedModel) -> type[PreTrainedModel]:
        """Return the class of the shrunk form of a model."""
        name = type(model).__name__.removeprefix("Zip")
        found = self._shrunk_classes().get(f"Zip{name}")
        if found is None:
            raise UnsupportedModel(f"there is no shrunk form of {name}", "load the model with another head")
        return found

    @abstractmethod
    def _unsupported(self, model: PreTrainedModel) -> str | None:
        """Return why this model cannot be pruned, or None if it can."""

    @abstractmethod
    def _shrunk_classes(self) -> dict[str, type[PreTrainedModel]]:
        """Return the classes of shrunk models, by name."""

    @abstractmethod
    def _layers(self, model: PreTrainedModel) -> Iterator[nn.Module]:
        """Return the transformer layers."""

    @abstractmethod
    def _groups(self, layer: nn.Module, kind: Kind) -> int:
        """Return the current number of heads or columns."""

    @abstractmethod
    def _group_size(self, model: PreTrainedModel, kind: Kind) -> int:
        """Return the number of output matrix columns per group."""

    @abstractmethod
    def _dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        """Return the number of heads or columns in the dense model."""

    @abstractmethod
    def _output_layer(self, layer: nn.Module, kind: Kind) -> nn.Module:
        """Return the linear layer of the output matrix."""

    @abstractmethod
    def _out_in(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight as (out, in). The function is its own inverse."""

    @abstractmethod
    def _stream_before(self, layer: nn.Module, kind: Kind) -> StreamPoint:
        """Return where the residual stream is visible."""

    @abstractmethod
    def _norm_after(self, layer: nn.Module, kind: Kind) -> nn.LayerNorm | None:
        """Return the norm over the sum of stream and output, if the stream continues normalised."""

    @abstractmethod
    def _language_head(self, model: PreTrainedModel) -> nn.Module | None:
        """Return the module from last hidden states to logits."""

    @abstractmethod
    def _run_branch(
        self,
        layer: nn.Module,
        kind: Kind,
        hidden: torch.Tensor,
        mask: object = None,
        cache: DynamicCache | None = None,
    ) -> torch.Tensor:
        """Compute the stream after a branch from the stream before it."""

    def _attention_mask(self, model: PreTrainedModel, hidden: torch.Tensor, past: int) -> object:
        """Return None: by default, all tokens see each other."""
        return None

    def _number_caches(self, model: PreTrainedModel) -> None:
        """Do nothing: by default, there is no cache."""
        return

    @abstractmethod
    def _parts(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of a layer's children that make up a branch."""

    @abstractmethod
    def _state(
        self, layer: nn.Module, kind: Kind, columns: Columns, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of the branch reduced to `columns`; only the bias if there are none."""

    @abstractmethod
    def _resize(self, layer: nn.Module, kind: Kind, groups: int) -> None:
        """Give a layer's branch that number of groups, with uninitialised weights."""

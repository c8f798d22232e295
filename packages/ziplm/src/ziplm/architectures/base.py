"""Architectures: what the stages need to know about a model, answered from its declaration."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.branch_module import BranchModule
from ziplm.architectures.zip_declaration import BranchSpec, Declaration
from ziplm.architectures.zip_layers import ZipModel, groups_of, number_caches, spec_of
from ziplm.errors import UnsupportedModel, UsageError

Part = Literal["attention", "ffn"]
PARTS: tuple[Part, Part] = ("attention", "ffn")
"""The two branches of a layer, in the order of the forward pass."""


class Size(NamedTuple):
    """The size of a branch. Two sizes without groups are the same: the branch is removed.

    Attributes:
        groups: number of heads (with grouped queries: of key heads) or FFN columns; 0 if it is removed.
        width: columns of the output matrix per group: the width of a head, or 1 for an FFN.
    """

    groups: int
    width: int


@dataclass(frozen=True)
class Branch:
    """One prunable branch: the attention or the FFN of one layer.

    Attributes:
        layer: index of the layer.
        kind: "attention" or "ffn", or a variant such as "attention.local" with a latency curve of its own.
        groups: number of heads (with grouped queries: of key heads) or FFN columns; 0 if it was removed.
        group_size: columns of the output matrix per group; without grouped queries, the width of a head.
    """

    layer: int
    kind: str
    groups: int
    group_size: int

    @property
    def part(self) -> str:
        """The kind without its variant: "attention" or "ffn"."""
        return self.kind.partition(".")[0]

    @property
    def name(self) -> str:
        """Name such as ``layer3.attention``, unique in its model and valid as a file name."""
        return f"layer{self.layer}.{self.part}"

    @property
    def columns(self) -> int:
        """Columns of the output matrix."""
        return self.groups * self.group_size

    @property
    def size(self) -> Size:
        """The groups and their width."""
        return Size(self.groups, self.group_size)


class Architecture:
    """All that ziplm needs to know about a model architecture.

    Args:
        declaration: what is special about the architecture.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration

    @property
    def model_types(self) -> tuple[str, str]:
        """`config.model_type` of the dense and of the shrunk models."""
        return self.declaration.model_type, f"zip_{self.declaration.model_type}"

    def check(self, model: PreTrainedModel) -> None:
        """Raise UnsupportedModel if this particular model cannot be pruned."""
        if reason := self.declaration.unsupported(model.config):
            raise UnsupportedModel(
                f"this {type(model).__name__} cannot be shrunk: {reason}",
                "load it with the architecture's default settings",
            )
        self.shrunk_class(model)

    def specs(self, model: PreTrainedModel, layer: int) -> tuple[BranchSpec, BranchSpec]:
        """Return where the attention and the FFN of a layer are, with the width that its heads have now."""
        attention, ffn = self.declaration.branches(model.config, layer)
        return spec_of(self.layers(model)[layer], attention), ffn

    def spec(self, model: PreTrainedModel, branch: Branch) -> BranchSpec:
        """Return where a branch is within its layer."""
        return self.specs(model, branch.layer)[PARTS.index(branch.part)]

    def branches(self, model: PreTrainedModel) -> list[Branch]:
        """Return all prunable branches in the order of the forward pass; removed ones have 0 groups."""
        return [
            Branch(index, spec.kind, groups_of(layer, spec), spec.group_size)
            for index, layer in enumerate(self.layers(model))
            for spec in self.specs(model, index)
        ]

    def kinds(self, model: PreTrainedModel) -> list[str]:
        """Return the kinds of branches that a model has, each with a latency curve of its own."""
        return list(dict.fromkeys(branch.kind for branch in self.branches(model)))

    def dense_groups(self, model: PreTrainedModel, kind: str) -> int:
        """Return the number of groups that branches of that kind have in the dense model."""
        return self.dense_size(model, kind).groups

    def dense_size(self, model: PreTrainedModel, kind: str) -> Size:
        """Return the size that branches of that kind have in the dense model."""
        spec = self.declaration.branches(model.config, 0)[PARTS.index(kind.partition(".")[0])]
        return Size(spec.groups, spec.group_size)

    def layers(self, model: PreTrainedModel) -> list[nn.Module]:
        """Return the transformer layers. Everything else (embeddings, final norm, pooler, head) is fixed."""
        return list(model.base_model.get_submodule(self.declaration.layers).children())

    def output_layer(self, model: PreTrainedModel, branch: Branch) -> nn.Module:
        """Return the linear layer of the output matrix, whose result is added to the residual stream."""
        return self.layers(model)[branch.layer].get_submodule(self.spec(model, branch).output)

    def weight(self, model: PreTrainedModel, branch: Branch) -> torch.Tensor:
        """Return the output matrix as (out, in) = (hidden, groups * group_size), a view of the parameter."""
        if branch.groups == 0:
            raise UsageError(f"{branch.name} was removed and has no weight", "leave it out")
        return out_in(self.output_layer(model, branch))

    def bias(self, model: PreTrainedModel, branch: Branch) -> torch.Tensor | None:
        """Return the bias of the output matrix, (hidden,), also of removed branches; None if it has none."""
        bias = self.output_layer(model, branch).bias
        assert bias is None or isinstance(bias, torch.Tensor)
        return bias

    def norm_after(self, model: PreTrainedModel, branch: Branch) -> nn.Module | None:
        """Return the norm that the whole stream passes after the branch (post-LN models), or None."""
        path = self.spec(model, branch).norm_after
        return None if path is None else self.layers(model)[branch.layer].get_submodule(path)

    def language_head(self, model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function from last hidden states (..., hidden) to logits (..., vocabulary)."""
        head = self.declaration.language_head(model)
        if head is None:
            raise UnsupportedModel(
                f"{type(model).__name__} has no language head",
                "load the model with one, or choose another task",
            )
        return head

    def branch_module(
        self,
        model: PreTrainedModel,
        branch: Branch,
        layer: nn.Module | None = None,
        past: torch.Tensor | None = None,
    ) -> BranchModule:
        """Return a branch with its residual connection and norms as a module of its own.

        Latency tables measure such modules. Positional arguments: (batch, tokens, hidden), and the result of
        `attention_mask`.

        Args:
            model: the model, whose settings and position embeddings are used.
            branch: the branch.
            layer: replaces the branch's own layer, for instance by a resized one.
            past: earlier inputs, (batch, past tokens, hidden), with which the cache is filled before every
                call; the number of past tokens may be 0. None for no cache.
        """
        spec = self.spec(model, branch)
        inputs: Callable[[torch.Tensor, int], dict[str, Any]] | None = None
        if spec.part == "attention":
            inputs = partial(self.declaration.attention_inputs, model.base_model, branch.layer)
        return BranchModule(spec, layer or self.layers(model)[branch.layer], inputs, past)

    def attention_mask(
        self, model: PreTrainedModel, branch: Branch, hidden: torch.Tensor, past: int = 0
    ) -> object:
        """Return the mask that the model passes to an attention if nothing is padding; None for no mask.

        Args:
            model: the model, whose settings decide.
            branch: the attention; an FFN has no mask.
            hidden: (batch, tokens, hidden), its input.
            past: number of earlier tokens in the cache.
        """
        if branch.part != "attention":
            return None
        return self.declaration.attention_mask(model.base_model, branch.layer, hidden, past)

    def number_caches(self, model: PreTrainedModel) -> None:
        """Renumber the attentions' cache layers; call it after removing attentions from a decoder."""
        if self.declaration.causal:
            layers = self.layers(model)
            number_caches(layers, [self.specs(model, index)[0] for index in range(len(layers))])

    def parts(self, model: PreTrainedModel, branch: Branch) -> dict[str, nn.Module]:
        """Return the children of the layer that make up the branch, by name."""
        layer = self.layers(model)[branch.layer]
        return {name: getattr(layer, name) for name in part_names(self.spec(model, branch))}

    def install(self, model: PreTrainedModel, branch: Branch, parts: dict[str, nn.Module]) -> None:
        """Put the parts of a branch, from `parts` or from `ziplm.architectures.surgery`, into their layer."""
        for name, part in parts.items():
            setattr(self.layers(model)[branch.layer], name, part)

    def shrunk_class(self, model: PreTrainedModel) -> type[PreTrainedModel]:
        """Return the class of the shrunk form of a model."""
        from ziplm.architectures.zip_classes import zip_classes

        if isinstance(model, ZipModel):
            return type(model)
        found = zip_classes().get(f"Zip{type(model).__name__}")
        if found is None:
            raise UnsupportedModel(
                f"there is no shrunk form of {type(model).__name__}", "load the model with another head"
            )
        return found


def out_in(linear: nn.Module) -> torch.Tensor:
    """Return the weight of a linear layer as (out, in), a view of the parameter."""
    weight = linear.weight
    assert isinstance(weight, torch.Tensor)
    return weight if isinstance(linear, nn.Linear) else weight.mT


def part_names(spec: BranchSpec) -> list[str]:
    """Return the names of a layer's children that contain a branch, with the norm that only it reads."""
    paths = [spec.body, spec.output, *(rows.path for rows in spec.rows)]
    if spec.norm_before is not None:
        paths.append(spec.norm_before)
    return list(dict.fromkeys(path.partition(".")[0] for path in paths))

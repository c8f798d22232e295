"""Declarations: what differs between architectures, in terms that generic code understands.

This file is copied into checkpoints, beside the file of its architecture, and must work there without ziplm.
It imports only torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

ENCODER_HEADS = {
    "Model": "AutoModel",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForNextSentencePrediction": "AutoModelForNextSentencePrediction",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
}
DECODER_HEADS = {
    "Model": "AutoModel",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
}
"""Endings of class names, and the Auto class that loads each; an architecture may lack some of them."""

Quantity = Literal["groups", "columns", "width", "scaling"]
"""A number that depends on the size of a branch; see `BranchSpec.follows`."""


@dataclass(frozen=True)
class Rows:
    """The rows of a weight matrix that belong to the groups of a branch.

    Attributes:
        path: path of the linear layer within a transformer layer, such as "attention.self.query".
        per_group: rows that each group has in each block.
        roles: what the blocks of the matrix compute, in their order: "query", "key", "value", "gate" or "up".
            A matrix with several roles is fused: its blocks have the same size and follow each other.
    """

    path: str
    per_group: int
    roles: tuple[str, ...]


@dataclass(frozen=True)
class BranchSpec:
    """Where a branch is within its transformer layer, and what changes with its size.

    Attributes:
        kind: "attention" or "ffn", or a variant such as "attention.local" that takes a different time.
        groups: number of groups in the dense model.
        group_size: columns of the output matrix per group.
        body: path of the module that computes the branch from its input. If the branch is removed, it is
            replaced. It contains the output matrix, or ends just before it.
        output: path of the linear layer of the output matrix, whose result is added to the residual stream.
        rows: the matrices whose rows belong to the groups.
        follows: attributes that depend on the size, such as "attn.num_heads", and what they hold: the number
            of "groups", the "columns" of all groups, the "width" of a head, or the "scaling" of the scores,
            which is proportional to 1/√width. Without an attribute for the width, heads keep their width:
            with rotary embeddings, queries and keys cannot be made narrower.
        scaled: whether scores are divided by the root of the width.
        norm_before: path of the norm through which the branch reads the stream (pre-LN models).
        norm_after: path of the norm that the stream passes after the branch (post-LN models).
        kept: path of a buffer with the numbers of the groups that are left, for bodies that need them.
        adapt: prepares a layer for resizing, for bodies that cannot be resized as they are.
    """

    kind: str
    groups: int
    group_size: int
    body: str
    output: str
    rows: tuple[Rows, ...]
    follows: Mapping[str, Quantity] = field(default_factory=dict)
    scaled: bool = True
    norm_before: str | None = None
    norm_after: str | None = None
    kept: str | None = None
    adapt: Callable[[Any], None] | None = None

    @property
    def part(self) -> str:
        """The kind without its variant: "attention" or "ffn"."""
        return self.kind.partition(".")[0]

    @property
    def output_in_body(self) -> bool:
        """Whether the body contains the output matrix."""
        return self.output.startswith(f"{self.body}.")

    @property
    def width_path(self) -> str | None:
        """Path of the attribute with the width of a head; None if heads keep their width."""
        return next((path for path, held in self.follows.items() if held == "width"), None)

    def at_width(self, width: int) -> "BranchSpec":
        """Return what describes the same branch with heads of another width."""
        if width == self.group_size:
            return self
        rows = tuple(replace(rows, per_group=width) for rows in self.rows)
        return replace(self, group_size=width, rows=rows)


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Declaration:
    """A model architecture, as far as it differs from others.

    Attributes:
        model_type: `config.model_type` of the dense models; shrunk ones have "zip_" before it.
        prefix: beginning of the class names, such as "Bert".
        heads: endings of class names and their Auto classes.
        layers: path of the transformer layers within the base model.
        branches: returns the attention and the FFN of a layer, given the config and the layer's index.
        language_head: returns the function from last hidden states to logits, or None without such a head.
        attention_inputs: returns further keyword arguments of an attention's body, given the base model, the
            layer's index, its input (batch, tokens, hidden) and the number of tokens in the cache.
        attention_mask: returns the mask of an attention if nothing is padding, given the same; None for no
            mask.
        positions: returns the number of tokens that a model takes, given the config.
        unsupported: returns why a model with this config cannot be shrunk, or None if it can.
        causal: whether the attentions use a cache.
        rms_norm: whether norms only scale the stream; otherwise they also subtract its mean.
        layer_returns_tuple: whether a transformer layer returns a tuple.
    """

    model_type: str
    prefix: str
    heads: Mapping[str, str]
    layers: str
    branches: Callable[[Any, int], tuple[BranchSpec, BranchSpec]]
    language_head: Callable[[Any], Callable[[torch.Tensor], torch.Tensor] | None]
    attention_inputs: Callable[[Any, int, torch.Tensor, int], dict[str, Any]] = _nothing
    attention_mask: Callable[[Any, int, torch.Tensor, int], Any] = lambda *_: None
    positions: Callable[[Any], int] = lambda config: config.max_position_embeddings
    unsupported: Callable[[Any], str | None] = lambda config: None
    causal: bool = False
    rms_norm: bool = False
    layer_returns_tuple: bool = False

"""BERT and ELECTRA: post-LN layers with separate matrices for query, key and value.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from collections.abc import Callable
from typing import Any

import torch

from .zip_declaration import ENCODER_HEADS, BranchSpec, Declaration, Rows
from .zip_layers import define_classes


def bert_branches(config: Any, _: int) -> tuple[BranchSpec, BranchSpec]:
    """Return the branches of a layer as in BERT, which several other encoders copied."""
    head = config.hidden_size // config.num_attention_heads
    return (
        BranchSpec(
            "attention",
            groups=config.num_attention_heads,
            group_size=head,
            body="attention.self",
            output="attention.output.dense",
            rows=tuple(Rows(f"attention.self.{role}", head, (role,)) for role in ("query", "key", "value")),
            follows={
                "attention.self.num_attention_heads": "groups",
                "attention.self.all_head_size": "columns",
                "attention.self.attention_head_size": "width",
                "attention.self.scaling": "scaling",
            },
            norm_after="attention.output.LayerNorm",
        ),
        BranchSpec(
            "ffn",
            groups=config.intermediate_size,
            group_size=1,
            body="intermediate",
            output="output.dense",
            rows=(Rows("intermediate.dense", 1, ("up",)),),
            norm_after="output.LayerNorm",
        ),
    )


def decoder_reason(config: Any) -> str | None:
    """Return why an encoder with this config cannot be shrunk: it may be used as a decoder."""
    if config.is_decoder:
        return "is_decoder is on: it is used as a decoder"
    return "add_cross_attention is on: it attends to an encoder" if config.add_cross_attention else None


def _bert_head(model: Any) -> Any:
    return getattr(model, "cls", None) if hasattr(getattr(model, "cls", None), "predictions") else None


def _electra_head(model: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if not hasattr(model, "generator_lm_head"):
        return None
    return lambda hidden: model.generator_lm_head(model.generator_predictions(hidden))


BERT = Declaration(
    "bert", "Bert", ENCODER_HEADS, "encoder.layer", bert_branches, _bert_head, unsupported=decoder_reason
)
ELECTRA = Declaration(
    "electra",
    "Electra",
    ENCODER_HEADS,
    "encoder.layer",
    bert_branches,
    _electra_head,
    unsupported=decoder_reason,
)
DECLARATIONS = (BERT, ELECTRA)
define_classes(__name__, *DECLARATIONS)

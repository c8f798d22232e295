"""MPNet: BERT's layers, and one relative position bias that all layers share, one row for each head.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from dataclasses import replace
from typing import Any

import torch
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from .modeling_zip_bert import bert_branches
from .zip_declaration import ENCODER_HEADS, BranchSpec, Declaration, Rows
from .zip_layers import define_classes


class KeptHeadsAttention(MPNetSelfAttention):
    """An attention that takes the rows of its heads from the shared position bias."""

    kept_heads: torch.Tensor

    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any = None,
        position_bias: Any = None,
        output_attentions: Any = False,
        **kwargs: Any,
    ) -> Any:
        """(batch, tokens, hidden) -> (batch, tokens, hidden), in a tuple."""
        if position_bias is not None:
            position_bias = position_bias[:, self.kept_heads]  # (batch, heads left, tokens, tokens)
        return super().forward(hidden_states, attention_mask, position_bias, output_attentions, **kwargs)


def _adapt(layer: Any) -> None:
    layer.attention.attn.__class__ = KeptHeadsAttention


def _branches(config: Any, layer: int) -> tuple[BranchSpec, BranchSpec]:
    attention, ffn = bert_branches(config, layer)
    head = attention.group_size
    attention = replace(
        attention,
        body="attention.attn",
        output="attention.attn.o",
        rows=tuple(Rows(f"attention.attn.{role[0]}", head, (role,)) for role in ("query", "key", "value")),
        follows={
            "attention.attn.num_attention_heads": "groups",
            "attention.attn.all_head_size": "columns",
            "attention.attn.attention_head_size": "width",
        },
        norm_after="attention.LayerNorm",
        kept="attention.attn.kept_heads",
        adapt=_adapt,
    )
    return attention, ffn


def _position_bias(model: Any, _: int, hidden: torch.Tensor, __: int) -> dict[str, Any]:
    return {"position_bias": model.encoder.compute_position_bias(hidden)}


MPNET = Declaration(
    "mpnet",
    "MPNet",
    ENCODER_HEADS,
    "encoder.layer",
    _branches,
    lambda model: getattr(model, "lm_head", None),
    attention_inputs=_position_bias,
    positions=lambda config: config.max_position_embeddings - 2,  # the padding index is always 1
    layer_returns_tuple=True,
)
DECLARATIONS = (MPNET,)
define_classes(__name__, MPNET)

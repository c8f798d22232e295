"""ModernBERT: pre-LN layers with fused matrices, rotary positions, and local attention in most layers.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

import torch
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from .zip_declaration import ENCODER_HEADS, BranchSpec, Declaration, Rows
from .zip_layers import define_classes


def _is_local(config: Any, layer: int) -> bool:
    return bool(config.layer_types[layer] == "sliding_attention")


def _branches(config: Any, layer: int) -> tuple[BranchSpec, BranchSpec]:
    head = config.hidden_size // config.num_attention_heads
    return (
        BranchSpec(
            "attention.local" if _is_local(config, layer) else "attention",
            groups=config.num_attention_heads,
            group_size=head,
            body="attn",
            output="attn.Wo",
            rows=(Rows("attn.Wqkv", head, ("query", "key", "value")),),
            norm_before="attn_norm",
        ),
        BranchSpec(
            "ffn",
            groups=config.intermediate_size,
            group_size=1,
            body="mlp",
            output="mlp.Wo",
            rows=(Rows("mlp.Wi", 1, ("gate", "up")),),
            norm_before="mlp_norm",
        ),
    )


def _rotary(model: Any, layer: int, hidden: torch.Tensor, _: int) -> dict[str, Any]:
    positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
    return {"position_embeddings": model.rotary_emb(hidden, positions, model.config.layer_types[layer])}


def _mask(model: Any, layer: int, hidden: torch.Tensor, _: int) -> Any:
    make = (
        create_bidirectional_sliding_window_mask
        if _is_local(model.config, layer)
        else create_bidirectional_mask
    )
    return make(config=model.config, inputs_embeds=hidden, attention_mask=None)


def _head(model: Any) -> Any:
    return (lambda hidden: model.decoder(model.head(hidden))) if hasattr(model, "decoder") else None


MODERNBERT = Declaration(
    "modernbert",
    "ModernBert",
    ENCODER_HEADS,
    "layers",
    _branches,
    _head,
    attention_inputs=_rotary,
    attention_mask=_mask,
)
DECLARATIONS = (MODERNBERT,)
define_classes(__name__, MODERNBERT)

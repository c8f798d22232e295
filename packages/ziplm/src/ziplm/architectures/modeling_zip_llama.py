"""Llama, Mistral, Qwen2 and Qwen3: pre-norm layers with RMSNorm, rotary positions and grouped queries.

A group of an attention is a head of keys and values with the query heads that it serves. This file is copied
into checkpoints and must work there without ziplm. It imports only torch and transformers.
"""

from typing import Any

import torch

from .zip_declaration import DECODER_HEADS, BranchSpec, Declaration, Rows
from .zip_layers import causal_mask, define_classes


def _branches(config: Any, _: int) -> tuple[BranchSpec, BranchSpec]:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    served = config.num_attention_heads // config.num_key_value_heads  # query heads of a group
    return (
        BranchSpec(
            "attention",
            groups=config.num_key_value_heads,
            group_size=served * head,
            body="self_attn",
            output="self_attn.o_proj",
            rows=(
                Rows("self_attn.q_proj", served * head, ("query",)),
                Rows("self_attn.k_proj", head, ("key",)),
                Rows("self_attn.v_proj", head, ("value",)),
            ),
            norm_before="input_layernorm",
        ),
        BranchSpec(
            "ffn",
            groups=config.intermediate_size,
            group_size=1,
            body="mlp",
            output="mlp.down_proj",
            rows=(Rows("mlp.gate_proj", 1, ("gate",)), Rows("mlp.up_proj", 1, ("up",))),
            norm_before="post_attention_layernorm",
        ),
    )


def _rotary(model: Any, _: int, hidden: torch.Tensor, past: int) -> dict[str, Any]:
    positions = torch.arange(past, past + hidden.shape[1], device=hidden.device)[None]
    return {"position_embeddings": model.rotary_emb(hidden, positions)}


def _unsupported(config: Any) -> str | None:
    if len(set(getattr(config, "layer_types", None) or ["full_attention"])) > 1:
        return "some of its layers have a sliding window and others have none"
    return None


DECLARATIONS = tuple(
    Declaration(
        model_type,
        prefix,
        DECODER_HEADS,
        "layers",
        _branches,
        lambda model: getattr(model, "lm_head", None),
        attention_inputs=_rotary,
        attention_mask=causal_mask,
        unsupported=_unsupported,
        causal=True,
        rms_norm=True,
    )
    for model_type, prefix in (
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
    )
)
define_classes(__name__, *DECLARATIONS)

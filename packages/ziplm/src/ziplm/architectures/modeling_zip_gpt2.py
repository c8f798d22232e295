"""GPT2: pre-LN layers, query, key and value in one matrix, weights as (in, out).

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

from .zip_declaration import DECODER_HEADS, BranchSpec, Declaration, Quantity, Rows
from .zip_layers import causal_mask, define_classes


def _branches(config: Any, _: int) -> tuple[BranchSpec, BranchSpec]:
    head = config.n_embd // config.n_head
    return (
        BranchSpec(
            "attention",
            groups=config.n_head,
            group_size=head,
            body="attn",
            output="attn.c_proj",
            rows=(Rows("attn.c_attn", head, ("query", "key", "value")),),
            follows={
                "attn.num_heads": "groups",
                "attn.split_size": "columns",
                "attn.head_dim": "width",
                **_scaling(config),
            },
            scaled=config.scale_attn_weights,
            norm_before="ln_1",
        ),
        BranchSpec(
            "ffn",
            groups=config.n_inner if config.n_inner is not None else 4 * config.n_embd,
            group_size=1,
            body="mlp",
            output="mlp.c_proj",
            rows=(Rows("mlp.c_fc", 1, ("up",)),),
            norm_before="ln_2",
        ),
    )


def _scaling(config: Any) -> dict[str, Quantity]:
    return {"attn.scaling": "scaling"} if config.scale_attn_weights else {}


def _unsupported(config: Any) -> str | None:
    return "add_cross_attention is on: it attends to an encoder" if config.add_cross_attention else None


GPT2 = Declaration(
    "gpt2",
    "GPT2",
    DECODER_HEADS,
    "h",
    _branches,
    lambda model: getattr(model, "lm_head", None),
    attention_mask=causal_mask,
    unsupported=_unsupported,
    causal=True,
)
DECLARATIONS = (GPT2,)
define_classes(__name__, GPT2)

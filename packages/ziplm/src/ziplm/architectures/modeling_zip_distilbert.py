"""DistilBERT: post-LN layers whose modules contain their output matrices.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from collections.abc import Callable
from typing import Any

import torch

from .zip_declaration import ENCODER_HEADS, BranchSpec, Declaration, Rows
from .zip_layers import define_classes


def _branches(config: Any, _: int) -> tuple[BranchSpec, BranchSpec]:
    head = config.dim // config.n_heads
    return (
        BranchSpec(
            "attention",
            groups=config.n_heads,
            group_size=head,
            body="attention",
            output="attention.out_lin",
            rows=tuple(Rows(f"attention.{role[0]}_lin", head, (role,)) for role in ("query", "key", "value")),
            follows={
                "attention.n_heads": "groups",
                "attention.attention_head_size": "width",
                "attention.scaling": "scaling",
            },
            norm_after="sa_layer_norm",
        ),
        BranchSpec(
            "ffn",
            groups=config.hidden_dim,
            group_size=1,
            body="ffn",
            output="ffn.lin2",
            rows=(Rows("ffn.lin1", 1, ("up",)),),
            norm_after="output_layer_norm",
        ),
    )


def _head(model: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if not hasattr(model, "vocab_projector"):
        return None

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = model.vocab_projector(
            model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        )
        return made

    return logits


DISTILBERT = Declaration("distilbert", "DistilBert", ENCODER_HEADS, "transformer.layer", _branches, _head)
DECLARATIONS = (DISTILBERT,)
define_classes(__name__, DISTILBERT)

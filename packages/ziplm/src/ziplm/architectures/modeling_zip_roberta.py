"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's layers; positions are counted from the padding index.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

from .modeling_zip_bert import bert_branches, decoder_reason
from .zip_declaration import ENCODER_HEADS, Declaration
from .zip_layers import define_classes


def _positions(config: Any) -> int:
    """The first position is the one after the padding index."""
    return int(config.max_position_embeddings - config.pad_token_id - 1)


def _head(model: Any) -> Any:
    return getattr(model, "lm_head", None)


DECLARATIONS = tuple(
    Declaration(
        model_type,
        prefix,
        ENCODER_HEADS,
        "encoder.layer",
        bert_branches,
        _head,
        positions=_positions,
        unsupported=decoder_reason,
    )
    for model_type, prefix in (
        ("roberta", "Roberta"),
        ("xlm-roberta", "XLMRoberta"),
        ("camembert", "Camembert"),
    )
)
define_classes(__name__, *DECLARATIONS)

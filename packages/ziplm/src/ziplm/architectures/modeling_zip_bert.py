"""BERT with an individual number of heads and FFN width in every layer.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from .zip_layers import ZIP_VERSION, Constant, check_sizes


class ZipBertConfig(BertConfig):
    """The dense model's `BertConfig`, extended by the sizes of each layer.

    Args:
        zip_heads: attention heads of each layer; 0 where the attention is removed.
        zip_widths: intermediate size of each layer; 0 where the FFN is removed.
        zip_version: version of this format.

    The sizes are checked here, before any model is built.
    """

    model_type = "zip_bert"

    zip_heads: list[int] | None = None
    zip_widths: list[int] | None = None
    zip_version: int = ZIP_VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.is_decoder:
            raise ValueError("is_decoder is on, but BERT can be shrunk as an encoder only")
        check_sizes(self, self.intermediate_size)


class NoSelfAttention(nn.Module):
    """Replaces the self-attention of a removed branch, and returns its input."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        """(..., hidden) -> (..., hidden)."""
        return hidden_states, None


def resize_attention(layer: Any, heads: int) -> None:
    """Give the attention of a `BertLayer` that number of heads, with uninitialised weights."""
    attention, output = layer.attention.self, layer.attention.output
    hidden = output.LayerNorm.normalized_shape[0]
    if heads == 0:
        layer.attention.self, output.dense = NoSelfAttention(), Constant(hidden)
        return
    size = heads * attention.attention_head_size
    attention.num_attention_heads, attention.all_head_size = heads, size
    for name in ("query", "key", "value"):
        setattr(attention, name, nn.Linear(hidden, size))
    output.dense = nn.Linear(size, hidden)


def resize_ffn(layer: Any, width: int) -> None:
    """Give the FFN of a `BertLayer` that number of columns, with uninitialised weights."""
    hidden = layer.output.LayerNorm.normalized_shape[0]
    if width == 0:
        layer.intermediate, layer.output.dense = nn.Identity(), Constant(hidden)
        return
    layer.intermediate.dense, layer.output.dense = nn.Linear(hidden, width), nn.Linear(width, hidden)


class ZipBert:
    """Mixin that gives each layer of a BERT class its own size."""

    config_class: Any = ZipBertConfig
    base_model: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # the class of transformers
        for layer, heads, width in zip(
            self.base_model.encoder.layer, config.zip_heads, config.zip_widths, strict=True
        ):
            if heads != config.num_attention_heads:
                resize_attention(layer, heads)
            if width != config.intermediate_size:
                resize_ffn(layer, width)


class ZipBertModel(ZipBert, BertModel):
    """`BertModel` with layers of different sizes."""


class ZipBertForMaskedLM(ZipBert, BertForMaskedLM):
    """`BertForMaskedLM` with layers of different sizes."""


class ZipBertForMultipleChoice(ZipBert, BertForMultipleChoice):
    """`BertForMultipleChoice` with layers of different sizes."""


class ZipBertForNextSentencePrediction(ZipBert, BertForNextSentencePrediction):
    """`BertForNextSentencePrediction` with layers of different sizes."""


class ZipBertForQuestionAnswering(ZipBert, BertForQuestionAnswering):
    """`BertForQuestionAnswering` with layers of different sizes."""


class ZipBertForSequenceClassification(ZipBert, BertForSequenceClassification):
    """`BertForSequenceClassification` with layers of different sizes."""


class ZipBertForTokenClassification(ZipBert, BertForTokenClassification):
    """`BertForTokenClassification` with layers of different sizes."""


CONFIG_CLASS = ZipBertConfig
AUTO_CLASSES = {
    ZipBertModel: "AutoModel",
    ZipBertForMaskedLM: "AutoModelForMaskedLM",
    ZipBertForMultipleChoice: "AutoModelForMultipleChoice",
    ZipBertForNextSentencePrediction: "AutoModelForNextSentencePrediction",
    ZipBertForQuestionAnswering: "AutoModelForQuestionAnswering",
    ZipBertForSequenceClassification: "AutoModelForSequenceClassification",
    ZipBertForTokenClassification: "AutoModelForTokenClassification",
}
"""The Auto class that loads each model class."""

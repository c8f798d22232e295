"""GPT2 with an individual number of heads and FFN width in every layer.

This file is copied into checkpoints and must work there without ziplm. It imports only torch and
transformers.
"""

from typing import Any

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)
from transformers.pytorch_utils import Conv1D

from .zip_layers import ZIP_VERSION, Constant, check_sizes


class ZipGPT2Config(GPT2Config):
    """The dense model's `GPT2Config`, extended by the sizes of each layer.

    Args:
        zip_heads: attention heads of each layer; 0 where the attention is removed.
        zip_widths: intermediate size of each layer; 0 where the FFN is removed.
        zip_version: version of this format.

    The sizes are checked here, before any model is built.
    """

    model_type = "zip_gpt2"

    zip_heads: list[int] | None = None
    zip_widths: list[int] | None = None
    zip_version: int = ZIP_VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_sizes(self, self.dense_width)

    @property
    def dense_width(self) -> int:
        """Intermediate size of the dense model."""
        return self.n_inner if self.n_inner is not None else 4 * self.n_embd


class RemovedAttention(nn.Module):
    """Replaces a removed attention by the bias of its output matrix.

    If a model has no attention left, nothing tells the cache how many tokens it has seen, and positions would
    be wrong. In that case (`counts_tokens`), the first layer stores keys of one head of size 1, which are
    never read.
    """

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.c_proj = Constant(size)
        self.resid_dropout = nn.Dropout(dropout)
        self.counts_tokens = False

    def forward(
        self, hidden_states: torch.Tensor, past_key_values: Any = None, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """(batch, tokens, hidden) -> (batch, tokens, hidden)."""
        if self.counts_tokens and past_key_values is not None:
            mark = hidden_states[
                :, None, :, :1
            ]  # (batch, 1, tokens, 1): a cache does not count keys of size 0
            past_key_values.update(mark, mark, 0)
        return self.resid_dropout(self.c_proj(hidden_states)), None


class RemovedMLP(nn.Module):
    """Replaces a removed FFN by the bias of its output matrix."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.c_proj = Constant(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., hidden) -> (..., hidden)."""
        output: torch.Tensor = self.dropout(self.c_proj(hidden_states))
        return output


def resize_attention(block: Any, heads: int) -> None:
    """Give the attention of a `GPT2Block` that number of heads, with uninitialised weights."""
    attention = block.attn
    hidden = attention.embed_dim
    if heads == 0:
        block.attn = RemovedAttention(hidden, attention.resid_dropout.p)
        block.ln_1 = nn.Identity()  # its output would not be used
        return
    size = heads * attention.head_dim
    attention.num_heads, attention.split_size = heads, size
    attention.c_attn, attention.c_proj = Conv1D(3 * size, hidden), Conv1D(hidden, size)


def resize_ffn(block: Any, width: int) -> None:
    """Give the FFN of a `GPT2Block` that number of columns, with uninitialised weights."""
    hidden = block.mlp.c_proj.nf
    if width == 0:
        block.mlp = RemovedMLP(hidden, block.mlp.dropout.p)
        block.ln_2 = nn.Identity()  # its output would not be used
        return
    block.mlp.c_fc, block.mlp.c_proj = Conv1D(width, hidden), Conv1D(hidden, width)


def number_caches(blocks: Any) -> None:
    """Renumber the remaining attentions, so that they use the first layers of the cache.

    A cache reports the length of its first layer, which would stay empty if layer 0 has no attention. Scaling
    by the layer index, if enabled, was fixed when the attention was built and does not change.
    """
    left = [block.attn for block in blocks if not isinstance(block.attn, RemovedAttention)]
    for index, attention in enumerate(left):
        attention.layer_idx = index
    for index, block in enumerate(blocks):
        if isinstance(block.attn, RemovedAttention):
            block.attn.counts_tokens = not left and index == 0


class ZipGPT2:
    """Mixin that gives each layer of a GPT2 class its own size."""

    config_class: Any = ZipGPT2Config
    base_model: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # the class of transformers
        blocks = self.base_model.h
        for block, heads, width in zip(blocks, config.zip_heads, config.zip_widths, strict=True):
            if heads != config.n_head:
                resize_attention(block, heads)
            if width != config.dense_width:
                resize_ffn(block, width)
        number_caches(blocks)

    def _get_static_cache_init_shape(self) -> None:
        """Return None, so that a static cache takes each layer's shape from its first tokens."""


class ZipGPT2Model(ZipGPT2, GPT2Model):
    """`GPT2Model` with layers of different sizes."""


class ZipGPT2LMHeadModel(ZipGPT2, GPT2LMHeadModel):
    """`GPT2LMHeadModel` with layers of different sizes."""


class ZipGPT2ForSequenceClassification(ZipGPT2, GPT2ForSequenceClassification):
    """`GPT2ForSequenceClassification` with layers of different sizes."""


class ZipGPT2ForTokenClassification(ZipGPT2, GPT2ForTokenClassification):
    """`GPT2ForTokenClassification` with layers of different sizes."""


class ZipGPT2ForQuestionAnswering(ZipGPT2, GPT2ForQuestionAnswering):
    """`GPT2ForQuestionAnswering` with layers of different sizes."""


CONFIG_CLASS = ZipGPT2Config
AUTO_CLASSES = {
    ZipGPT2Model: "AutoModel",
    ZipGPT2LMHeadModel: "AutoModelForCausalLM",
    ZipGPT2ForQuestionAnswering: "AutoModelForQuestionAnswering",
    ZipGPT2ForSequenceClassification: "AutoModelForSequenceClassification",
    ZipGPT2ForTokenClassification: "AutoModelForTokenClassification",
}
"""The Auto class that loads each model class."""

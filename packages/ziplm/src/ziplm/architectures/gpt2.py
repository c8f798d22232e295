"""GPT2: pre-LN layers, fused q, k, v, weights as (in, out)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.masking_utils import create_causal_mask

from ziplm.architectures import modeling_zip_gpt2
from ziplm.architectures.base import Architecture, Columns, Kind, StreamPoint
from ziplm.architectures.modeling_zip_gpt2 import number_caches, resize_attention, resize_ffn


class GPT2Architecture(Architecture):
    """GPT2 decoders with any head, dense or shrunk."""

    model_types = ("gpt2", "zip_gpt2")

    def _unsupported(self, model: PreTrainedModel) -> str | None:
        return "it attends to an encoder" if model.config.add_cross_attention else None

    def _shrunk_classes(self) -> dict[str, type[PreTrainedModel]]:
        return {cls.__name__: cls for cls in modeling_zip_gpt2.AUTO_CLASSES}

    def _layers(self, model: Any) -> Iterator[nn.Module]:
        return iter(model.base_model.h)

    def _groups(self, layer: Any, kind: Kind) -> int:
        if kind == "attention":
            return getattr(layer.attn, "num_heads", 0)
        return getattr(layer.mlp.c_proj, "nx", 0)

    def _group_size(self, model: PreTrainedModel, kind: Kind) -> int:
        return model.config.n_embd // model.config.n_head if kind == "attention" else 1

    def _dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        config = model.config
        if kind == "attention":
            return config.n_head
        return config.n_inner if config.n_inner is not None else 4 * config.n_embd

    def _output_layer(self, layer: Any, kind: Kind) -> nn.Module:
        return (layer.attn if kind == "attention" else layer.mlp).c_proj

    def _out_in(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.mT

    def _stream_before(self, layer: Any, kind: Kind) -> StreamPoint:
        return StreamPoint(layer.ln_1 if kind == "attention" else layer.ln_2, 0)

    def _norm_after(self, layer: Any, kind: Kind) -> None:
        return None  # the stream itself is not normalised: each branch reads it through its own norm

    def _language_head(self, model: PreTrainedModel) -> nn.Module | None:
        return getattr(model, "lm_head", None)

    def _run_branch(
        self,
        layer: Any,
        kind: Kind,
        hidden: torch.Tensor,
        mask: Any = None,
        cache: DynamicCache | None = None,
    ) -> torch.Tensor:
        if kind == "attention":
            return hidden + layer.attn(layer.ln_1(hidden), past_key_values=cache, attention_mask=mask)[0]
        return hidden + layer.mlp(layer.ln_2(hidden))

    def _attention_mask(self, model: PreTrainedModel, hidden: torch.Tensor, past: int) -> object:
        cache = DynamicCache()
        if past:
            keys = hidden.new_zeros(len(hidden), 1, past, 1)  # the mask depends only on their number
            cache.update(keys, keys, 0)
        return create_causal_mask(model.config, hidden, None, cache)

    def _number_caches(self, model: Any) -> None:
        number_caches(model.base_model.h)

    def _parts(self, kind: Kind) -> tuple[str, ...]:
        return ("ln_1", "attn") if kind == "attention" else ("ln_2", "mlp")

    def _state(
        self, layer: Any, kind: Kind, columns: Columns, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        branch = "attn" if kind == "attention" else "mlp"
        if not weight.shape[1]:
            return {f"{branch}.c_proj.bias": bias}
        if kind == "attention":
            first, name = layer.attn.c_attn, "attn.c_attn"
            # q, k and v lie side by side; take the same columns of each.
            size = layer.attn.split_size
            parts = [slice(part * size, (part + 1) * size) for part in range(3)]
            first_weight = torch.cat([first.weight.detach()[:, part][:, columns] for part in parts], dim=1)
            first_bias = torch.cat([first.bias.detach()[part][columns] for part in parts])
        else:
            first, name = layer.mlp.c_fc, "mlp.c_fc"
            first_weight, first_bias = first.weight.detach()[:, columns], first.bias.detach()[columns]
        return {
            f"{branch}.c_proj.weight": weight.mT.contiguous(),
            f"{branch}.c_proj.bias": bias,
            f"{name}.weight": first_weight,
            f"{name}.bias": first_bias,
        }

    def _resize(self, layer: nn.Module, kind: Kind, groups: int) -> None:
        (resize_attention if kind == "attention" else resize_ffn)(layer, groups)

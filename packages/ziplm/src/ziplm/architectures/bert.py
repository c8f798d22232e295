"""BERT: post-LN layers, separate q, k, v, weights as (out, in)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ziplm.architectures import modeling_zip_bert
from ziplm.architectures.base import Architecture, Columns, Kind, StreamPoint
from ziplm.architectures.modeling_zip_bert import resize_attention, resize_ffn


class BertArchitecture(Architecture):
    """BERT encoders with any head, dense or shrunk."""

    model_types = ("bert", "zip_bert")

    def _unsupported(self, model: PreTrainedModel) -> str | None:
        if model.config.is_decoder or model.config.add_cross_attention:
            return "it is used as a decoder"
        return None

    def _shrunk_classes(self) -> dict[str, type[PreTrainedModel]]:
        return {cls.__name__: cls for cls in modeling_zip_bert.AUTO_CLASSES}

    def _layers(self, model: Any) -> Iterator[nn.Module]:
        return iter(model.base_model.encoder.layer)

    def _groups(self, layer: Any, kind: Kind) -> int:
        if kind == "attention":
            return getattr(layer.attention.self, "num_attention_heads", 0)
        return getattr(layer.output.dense, "in_features", 0)

    def _group_size(self, model: PreTrainedModel, kind: Kind) -> int:
        return model.config.hidden_size // model.config.num_attention_heads if kind == "attention" else 1

    def _dense_groups(self, model: PreTrainedModel, kind: Kind) -> int:
        return model.config.num_attention_heads if kind == "attention" else model.config.intermediate_size

    def _output_layer(self, layer: Any, kind: Kind) -> nn.Module:
        return layer.attention.output.dense if kind == "attention" else layer.output.dense

    def _out_in(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def _stream_before(self, layer: Any, kind: Kind) -> StreamPoint:
        # Both are called as output(hidden_states, input_tensor), and normalise their sum.
        return StreamPoint(layer.attention.output if kind == "attention" else layer.output, 1)

    def _norm_after(self, layer: Any, kind: Kind) -> nn.LayerNorm:
        return (layer.attention.output if kind == "attention" else layer.output).LayerNorm

    def _language_head(self, model: PreTrainedModel) -> nn.Module | None:
        return getattr(model, "cls", None) if hasattr(getattr(model, "cls", None), "predictions") else None

    def _run_branch(
        self,
        layer: Any,
        kind: Kind,
        hidden: torch.Tensor,
        mask: Any = None,
        cache: DynamicCache | None = None,
    ) -> torch.Tensor:
        if kind == "attention":
            return layer.attention(hidden, mask)[0]
        return layer.output(layer.intermediate(hidden), hidden)

    def _parts(self, kind: Kind) -> tuple[str, ...]:
        return ("attention",) if kind == "attention" else ("intermediate", "output")

    def _state(
        self, layer: Any, kind: Kind, columns: Columns, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        output = "attention.output.dense" if kind == "attention" else "output.dense"
        if not weight.shape[1]:
            return {f"{output}.bias": bias}
        first = (
            {
                f"attention.self.{name}": getattr(layer.attention.self, name)
                for name in ("query", "key", "value")
            }
            if kind == "attention"
            else {"intermediate.dense": layer.intermediate.dense}
        )
        state = {f"{output}.weight": weight, f"{output}.bias": bias}
        for name, linear in first.items():
            state[f"{name}.weight"] = linear.weight.detach()[columns]
            state[f"{name}.bias"] = linear.bias.detach()[columns]
        return state

    def _resize(self, layer: nn.Module, kind: Kind, groups: int) -> None:
        (resize_attention if kind == "attention" else resize_ffn)(layer, groups)

"""What is left of a model, layer by layer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ziplm.adapters import adapter_for
from ziplm.checkpoint import model_class_of, read_config


@dataclass(frozen=True)
class Inspection:
    """Sizes of one model; parameters of the layers are those without embeddings, final norm and head."""

    model_class: str
    heads: list[int]
    widths: list[int]
    dense_heads: int
    dense_width: int
    layer_parameters: list[int]
    dense_layer_parameters: int
    parameters: int


def inspect_model(model: PreTrainedModel) -> Inspection:
    """Read the sizes off a model; one on the meta device will do."""
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    layers = adapter.layers(model)
    hidden = adapter.bias(model, modules[0]).shape[0]
    dense_heads, dense_width = (adapter.dense_groups(model, kind) for kind in ("attention", "ffn"))
    # q, k, v and output; two FFN matrices; biases of all six; two norms.
    dense = 4 * hidden * hidden + 2 * hidden * dense_width + 5 * hidden + dense_width + 4 * hidden
    return Inspection(
        model_class=type(model).__name__,
        heads=[module.groups for module in modules if module.kind == "attention"],
        widths=[module.groups for module in modules if module.kind == "ffn"],
        dense_heads=dense_heads,
        dense_width=dense_width,
        layer_parameters=[sum(parameter.numel() for parameter in layer.parameters()) for layer in layers],
        dense_layer_parameters=dense,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def inspect_checkpoint(path: str | Path) -> Inspection:
    """Read the sizes off a checkpoint without loading its weights."""
    config = read_config(path)
    with torch.device("meta"):
        return inspect_model(model_class_of(path, config)(config))


def size_on_disk(folder: Path) -> int:
    """Bytes of all weights in a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

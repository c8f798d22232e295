"""Inspecting a model: the sizes and parameters of each layer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import model_class_of, read_config
from ziplm.architectures.registry import architecture_of


@dataclass(frozen=True)
class Inspection:
    """Sizes of a model, layer by layer.

    Attributes:
        model_class: name of the model's class.
        heads: attention heads of each layer.
        widths: FFN width of each layer.
        dense_heads: attention heads of a layer of the dense model.
        dense_width: FFN width of a layer of the dense model.
        layer_parameters: parameters of each layer.
        dense_layer_parameters: parameters of a layer of the dense model.
        parameters: parameters of the whole model, including embeddings and head.
    """

    model_class: str
    heads: list[int]
    widths: list[int]
    dense_heads: int
    dense_width: int
    layer_parameters: list[int]
    dense_layer_parameters: int
    parameters: int


def inspect(model: PreTrainedModel | str | Path) -> Inspection:
    """Return the sizes of a model.

    Args:
        model: a model (one on the meta device is enough), the folder of a checkpoint, or a name on the hub.
            The weights of a checkpoint are not loaded.

    Raises:
        BadCheckpoint: if the checkpoint is missing or damaged.
        UnsupportedModel: if the architecture is unknown.
    """
    if isinstance(model, PreTrainedModel):
        return _inspect_model(model)
    config = read_config(model)
    with torch.device("meta"):
        return _inspect_model(model_class_of(model, config)(config))


def _inspect_model(model: PreTrainedModel) -> Inspection:
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    layers = architecture.layers(model)
    hidden = architecture.bias(model, branches[0]).shape[0]
    dense_heads, dense_width = (architecture.dense_groups(model, kind) for kind in ("attention", "ffn"))
    # Holds for BERT and GPT2: q, k, v and output; two FFN matrices; biases of all six; two norms.
    dense_parameters = 4 * hidden * hidden + 2 * hidden * dense_width + 5 * hidden + dense_width + 4 * hidden
    return Inspection(
        model_class=type(model).__name__,
        heads=[branch.groups for branch in branches if branch.kind == "attention"],
        widths=[branch.groups for branch in branches if branch.kind == "ffn"],
        dense_heads=dense_heads,
        dense_width=dense_width,
        layer_parameters=[sum(parameter.numel() for parameter in layer.parameters()) for layer in layers],
        dense_layer_parameters=dense_parameters,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def size_on_disk(folder: Path) -> int:
    """Return the size of all weight files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

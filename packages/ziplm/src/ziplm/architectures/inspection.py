"""Inspecting a model: the sizes and parameters of each layer."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.checkpoint import build, model_class_of, read_config
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.zip_layers import ZipModel, check_sizes


@dataclass(frozen=True)
class Inspection:
    """Sizes of a model, layer by layer.

    Attributes:
        model_class: name of the model's class.
        heads: attention heads of each layer; with grouped queries, heads of keys and values.
        head_widths: width of the heads of each layer; with grouped queries, of a key head's query heads.
        widths: FFN width of each layer.
        dense_heads: attention heads of a layer of the dense model.
        dense_head_width: width of these heads.
        dense_width: FFN width of a layer of the dense model.
        layer_parameters: parameters of each layer.
        dense_layer_parameters: parameters of a layer of the dense model.
        parameters: parameters of the whole model, including embeddings and head.
    """

    model_class: str
    heads: list[int]
    head_widths: list[int]
    widths: list[int]
    dense_heads: int
    dense_head_width: int
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
        return _inspect_model(build(model, model_class_of(model, config), config))


def _inspect_model(model: PreTrainedModel) -> Inspection:
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    layers = architecture.layers(model)
    dense_attention, dense_ffn = (architecture.dense_size(model, kind) for kind in ("attention", "ffn"))
    dense_layers = architecture.layers(_dense_structure(model))
    return Inspection(
        model_class=type(model).__name__,
        heads=[branch.groups for branch in branches if branch.part == "attention"],
        head_widths=[branch.group_size for branch in branches if branch.part == "attention"],
        widths=[branch.groups for branch in branches if branch.part == "ffn"],
        dense_heads=dense_attention.groups,
        dense_head_width=dense_attention.width,
        dense_width=dense_ffn.groups,
        layer_parameters=[_parameters(layer) for layer in layers],
        dense_layer_parameters=max(map(_parameters, dense_layers)),
        parameters=_parameters(model),
    )


def _dense_structure(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the dense sizes on the meta device, which takes no memory."""
    config = copy.deepcopy(model.config)
    if isinstance(model, ZipModel):
        config.zip_heads = config.zip_head_widths = config.zip_widths = None
        check_sizes(config, model.zip_declaration)
    with torch.device("meta"):
        return type(model)(config)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def size_on_disk(folder: Path) -> int:
    """Return the size of all weight files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

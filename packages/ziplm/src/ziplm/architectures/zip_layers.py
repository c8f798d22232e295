"""Layers of any size, and the classes of shrunk models, made from declarations of architectures.

This file is copied into checkpoints, beside the file of its architecture, and must work there without ziplm.
It imports only torch and transformers.
"""

import sys
from typing import Any

import torch
import transformers
from torch import nn
from transformers import DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.pytorch_utils import Conv1D

from .zip_declaration import BranchSpec, Declaration

ZIP_VERSION = 1
MODULES: dict[str, str] = {}
"""Name of the module in which the classes of each model type are defined."""


class Constant(nn.Module):
    """Replaces the output matrix of a removed branch: returns its bias, or zeros, for every input."""

    def __init__(self, size: int, bias: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., size)."""
        if self.bias is None:
            return torch.zeros_like(hidden_states)
        return self.bias.expand_as(hidden_states)


class Removed(nn.Module):
    """Replaces the body of a removed branch: returns what is left of its output.

    Args:
        name: name of the output layer within the body.
        output: what replaces the output layer; None if it is outside of the body, which then returns its
            input.
        attention: whether the body is an attention, which returns a tuple and may use a cache.

    If a decoder has no attention left, nothing tells its cache how many tokens it has seen, and positions
    would be wrong. In that case (`counts_tokens`), the first layer stores keys of one head of size 1, which
    are never read.
    """

    def __init__(self, name: str, output: Constant | None, attention: bool) -> None:
        super().__init__()
        self.name, self.attention, self.counts_tokens = name, attention, False
        if output is not None:
            self.add_module(name, output)

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, past_key_values: Any = None, **kwargs: Any
    ) -> Any:
        """(batch, tokens, hidden) -> (batch, tokens, hidden), in a tuple for attentions."""
        output = getattr(self, self.name, None)
        made = hidden_states if output is None else output(hidden_states)
        if self.counts_tokens and past_key_values is not None:
            # (batch, 1, tokens, 1): a cache does not count keys of size 0.
            mark = hidden_states[:, None, :, :1]
            past_key_values.update(mark, mark, 0)
        return (made, None) if self.attention else made


def linear_like(layer: Any, inputs: int, outputs: int) -> nn.Module:
    """Return a linear layer of the same class with other sizes and uninitialised weights."""
    if isinstance(layer, Conv1D):
        return Conv1D(outputs, inputs)
    return nn.Linear(inputs, outputs, bias=layer.bias is not None)


def spec_of(layer: nn.Module, dense: BranchSpec) -> BranchSpec:
    """Return what describes a layer's branch as it is now: its heads may be narrower than in the dense model.

    Args:
        layer: the layer.
        dense: what describes the branch in the dense model.
    """
    if dense.width_path is None:
        return dense
    owner, _, name = dense.width_path.rpartition(".")
    return dense.at_width(getattr(layer.get_submodule(owner), name, dense.group_size))


def groups_of(layer: nn.Module, spec: BranchSpec) -> int:
    """Return the number of groups that a layer's branch has now; 0 if it was removed."""
    output: Any = layer.get_submodule(spec.output)
    if isinstance(output, Constant):
        return 0
    return int(output.nx if isinstance(output, Conv1D) else output.in_features) // spec.group_size


def resize(layer: Any, spec: BranchSpec, groups: int, hidden: int) -> None:
    """Give a layer's branch that number of groups, of the spec's width, with uninitialised weights."""
    output: Any = layer.get_submodule(spec.output)
    if groups == 0:
        constant = Constant(hidden, output.bias is not None)
        name = spec.output.rpartition(".")[2]
        attention = spec.part == "attention"
        layer.set_submodule(spec.body, Removed(name, constant if spec.output_in_body else None, attention))
        if not spec.output_in_body:
            layer.set_submodule(spec.output, constant)
        if spec.norm_before is not None:
            layer.set_submodule(spec.norm_before, nn.Identity())  # its output would not be used
        return
    if spec.adapt is not None:
        spec.adapt(layer)
    for rows in spec.rows:
        size = len(rows.roles) * rows.per_group * groups
        layer.set_submodule(rows.path, linear_like(layer.get_submodule(rows.path), hidden, size))
    layer.set_submodule(spec.output, linear_like(output, groups * spec.group_size, hidden))
    _follow(layer, spec, groups)
    if spec.kept is not None:
        owner, _, name = spec.kept.rpartition(".")
        layer.get_submodule(owner).register_buffer(name, torch.arange(groups))


def _follow(layer: Any, spec: BranchSpec, groups: int) -> None:
    """Set the attributes of a layer that depend on the size of its branch."""
    before = spec_of(layer, spec).group_size
    values = {"groups": groups, "columns": groups * spec.group_size, "width": spec.group_size}
    for path, held in spec.follows.items():
        owner, _, name = path.rpartition(".")
        module: Any = layer.get_submodule(owner)
        if held == "scaling":  # it may also depend on the index of the layer, which stays
            setattr(module, name, getattr(module, name) * (before / spec.group_size) ** 0.5)
        else:
            setattr(module, name, values[held])


def number_caches(layers: Any, specs: list[BranchSpec]) -> None:
    """Renumber the remaining attentions of a decoder, so that they use the first layers of the cache.

    A cache reports the length of its first layer, which would stay empty if layer 0 has no attention. Scaling
    by the layer index, if enabled, was fixed when the attention was built and does not change.
    """
    bodies = [layer.get_submodule(spec.body) for layer, spec in zip(layers, specs, strict=True)]
    left = [body for body in bodies if not isinstance(body, Removed)]
    for index, body in enumerate(left):
        body.layer_idx = index
    for index, body in enumerate(bodies):
        if isinstance(body, Removed):
            body.counts_tokens = not left and index == 0


def causal_mask(model: Any, layer: int, hidden: torch.Tensor, past: int) -> Any:
    """Return the mask that a decoder passes to the attention of a layer if nothing is padding.

    Args:
        model: the base model, whose settings decide.
        layer: index of the layer.
        hidden: (batch, tokens, hidden), its input.
        past: number of earlier tokens in the cache.
    """
    cache = DynamicCache()
    if past:
        keys = hidden.new_zeros(len(hidden), 1, past, 1)  # the mask depends only on their number
        cache.update(keys, keys, 0)
    kinds = getattr(model.config, "layer_types", None)
    window = getattr(model.config, "sliding_window", None)
    local = kinds[layer] == "sliding_attention" if kinds else window is not None
    make = create_sliding_window_causal_mask if local else create_causal_mask
    return make(model.config, hidden, None, cache)


def check_sizes(config: Any, declaration: Declaration) -> None:
    """Raise ValueError unless the sizes in a config fit those of the dense model.

    A missing list is replaced by the sizes of the dense model.
    """
    if config.zip_version != ZIP_VERSION:
        raise ValueError(f"zip_version is {config.zip_version!r}, but this code reads version {ZIP_VERSION}")
    if reason := declaration.unsupported(config):
        raise ValueError(f"{reason}, and such models cannot be shrunk")
    attention, ffn = declaration.branches(config, 0)
    _check_list(config, "zip_heads", 0, attention.groups)
    _check_list(config, "zip_widths", 0, ffn.groups)
    if attention.width_path is not None:
        _check_list(config, "zip_head_widths", 1, attention.group_size)
    elif config.zip_head_widths is not None:
        raise ValueError(
            f"zip_head_widths is {config.zip_head_widths!r}, but heads of this architecture keep their width"
        )


def _check_list(config: Any, name: str, smallest: int, largest: int) -> None:
    """Raise ValueError unless a list has one size in the range for each layer; fill in a missing list."""
    layers = config.num_hidden_layers
    if getattr(config, name) is None:
        setattr(config, name, [largest] * layers)
    sizes = getattr(config, name)
    if not isinstance(sizes, list) or len(sizes) != layers:
        raise ValueError(f"{name} is {sizes!r}, but must be a list of {layers} sizes, one for each layer")
    if not all(type(size) is int and smallest <= size <= largest for size in sizes):
        raise ValueError(
            f"{name} is {sizes!r}, but all sizes must be whole numbers from {smallest} to {largest}"
        )


class ZipModel:
    """Mixin that gives each layer of a model class its own sizes."""

    zip_declaration: Declaration
    base_model: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # the class of transformers
        declaration = self.zip_declaration
        layers: Any = self.base_model.get_submodule(declaration.layers)
        for index, layer in enumerate(layers):
            attention, ffn = declaration.branches(config, index)
            heads, width = config.zip_heads[index], attention.group_size
            if config.zip_head_widths is not None:
                width = config.zip_head_widths[index]
            if (heads, width) != (attention.groups, attention.group_size):
                resize(layer, attention.at_width(width), heads, config.hidden_size)
            if config.zip_widths[index] != ffn.groups:
                resize(layer, ffn, config.zip_widths[index], config.hidden_size)
        if declaration.causal:
            number_caches(layers, [declaration.branches(config, index)[0] for index in range(len(layers))])

    def _get_static_cache_init_shape(self) -> None:
        """Return None, so that a static cache takes each layer's shape from its first tokens."""


def define_classes(module: str, *declarations: Declaration) -> None:
    """Define the config class and the model classes of declarations in the module of that name.

    They are called as those of transformers, with "Zip" before the name. The module also gets CONFIG_CLASSES
    (by model type) and AUTO_CLASSES (the Auto class that loads each model class).
    """
    namespace = sys.modules[module].__dict__
    configs = namespace.setdefault("CONFIG_CLASSES", {})
    autos = namespace.setdefault("AUTO_CLASSES", {})
    for declaration in declarations:
        MODULES[declaration.model_type] = module
        config = _config_class(module, declaration)
        namespace[config.__name__] = configs[declaration.model_type] = config
        for ending, auto in declaration.heads.items():
            dense_class = getattr(transformers, declaration.prefix + ending, None)
            if dense_class is None:
                continue
            made = type(
                f"Zip{dense_class.__name__}",
                (ZipModel, dense_class),
                {
                    "__module__": module,
                    "__doc__": f"`{dense_class.__name__}` with layers of different sizes.",
                    "config_class": config,
                    "zip_declaration": declaration,
                },
            )
            namespace[made.__name__] = made
            autos[made] = auto


def _config_class(module: str, declaration: Declaration) -> type:
    base: Any = getattr(transformers, f"{declaration.prefix}Config")

    def check(self: Any, **kwargs: Any) -> None:
        base.__post_init__(self, **kwargs)
        check_sizes(self, declaration)

    return type(
        f"Zip{base.__name__}",
        (base,),
        {
            "__module__": module,
            "__doc__": f"The dense model's `{base.__name__}`, extended by the sizes of each layer.",
            "__annotations__": {
                "zip_heads": list[int] | None,
                "zip_head_widths": list[int] | None,
                "zip_widths": list[int] | None,
                "zip_version": int,
            },
            "__post_init__": check,
            "model_type": f"zip_{declaration.model_type}",
            "zip_heads": None,  # attention groups of each layer; 0 where the attention is removed
            "zip_head_widths": None,  # columns of each head of each layer; None if heads keep their width
            "zip_widths": None,  # FFN columns of each layer; 0 where the FFN is removed
            "zip_version": ZIP_VERSION,
        },
    )

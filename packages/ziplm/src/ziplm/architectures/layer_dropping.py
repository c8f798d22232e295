"""Drop whole layers of a model: the simplest way to make one faster, and what pruning is compared with."""

import copy
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.registry import architecture_of
from ziplm.errors import UnsupportedModel, UsageError


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """Return a copy of a dense model that has only some of its layers; everything else stays as it is.

    Args:
        model: the dense model; it is not changed.
        kept: indices of the layers to keep, ascending; at least one.

    Raises:
        UsageError: if the indices are not ascending numbers of layers.
        UnsupportedModel: if the model does not hold its layers in one list.
    """
    architecture = architecture_of(model)
    layers = architecture.layers(model)
    if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < len(layers):
        raise UsageError(
            f"layers {list(kept)} cannot be kept", f"give ascending indices from 0 to {len(layers) - 1}"
        )
    path = _layer_list(model, layers)
    small = copy.deepcopy(model)
    owner, _, name = path.rpartition(".")
    setattr(small.get_submodule(owner), name, nn.ModuleList(architecture.layers(small)[i] for i in kept))
    small.config.num_hidden_layers = len(kept)
    for setting in ("zip_heads", "zip_head_widths", "zip_widths"):  # of a shrunk model: sizes of each layer
        if getattr(small.config, setting, None) is not None:
            setattr(small.config, setting, [getattr(small.config, setting)[i] for i in kept])
    architecture.number_caches(small)
    return small


def evenly_spaced(layers: int, count: int) -> list[int]:
    """Return `count` of `layers` indices, spread evenly from the first to the last: 2 of 6 are 0 and 5."""
    if count == 1:
        return [layers - 1]
    return [round(index * (layers - 1) / (count - 1)) for index in range(count)]


def _layer_list(model: PreTrainedModel, layers: Sequence[nn.Module]) -> str:
    """Return the path of the module list that holds the layers."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and list(module) == list(layers):
            return path
    raise UnsupportedModel(
        f"the layers of {type(model).__name__} are not in one list", "compare with other alternatives"
    )

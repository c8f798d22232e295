"""The known architectures, found by a model's type."""

from collections.abc import Callable

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ziplm.architectures.base import Architecture
from ziplm.architectures.zip_classes import MODELLING_FILES, built_in_declaration, register_other_classes
from ziplm.architectures.zip_declaration import Declaration
from ziplm.errors import UnsupportedModel

_REGISTERED: dict[str, Architecture] = {}


def register(declaration: Declaration) -> None:
    """Make an architecture known under its model type, in place of any other one.

    The classes of its shrunk models are those that `define_classes` has made for the declaration.
    """
    architecture = Architecture(declaration)
    _REGISTERED.update(dict.fromkeys(architecture.model_types, architecture))
    register_other_classes(declaration)


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the architecture of a model.

    Raises:
        UnsupportedModel: if the architecture is unknown, or this particular model cannot be pruned.
    """
    if is_exported(model):
        raise UnsupportedModel(
            "an exported file cannot be shrunk or taken apart", "give the checkpoint that it was made from"
        )
    model_type = model.config.model_type
    architecture = _architecture(model_type)
    if architecture is None:
        names = {*MODELLING_FILES, *(name for name in _REGISTERED if not name.startswith("zip_"))}
        raise UnsupportedModel(
            f"models of type {model_type!r} are not known", f"ziplm shrinks: {', '.join(sorted(names))}"
        )
    architecture.check(model)
    return architecture


def language_head(model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from a model's last hidden states (..., hidden) to logits (..., vocabulary).

    An exported file includes its head: what it returns are logits already.
    """
    if is_exported(model):
        return lambda logits: logits
    return architecture_of(model).language_head(model)


def is_exported(model: PreTrainedModel) -> bool:
    """Return whether a model is an exported file (`ziplm.architectures.exported.ExportedModel`)."""
    return bool(getattr(model, "runs_a_file", False))


def positions_of(config: PreTrainedConfig) -> int:
    """Return the largest number of tokens that a model with this config takes."""
    found = _architecture(config.model_type)
    return int(config.max_position_embeddings) if found is None else found.declaration.positions(config)


def _architecture(model_type: str) -> Architecture | None:
    """Return the architecture of a model type, dense or shrunk; None if it is not known."""
    name = model_type.removeprefix("zip_")
    if model_type not in _REGISTERED and name in MODELLING_FILES:
        architecture = Architecture(built_in_declaration(name))
        for known in architecture.model_types:
            _REGISTERED.setdefault(known, architecture)
    return _REGISTERED.get(model_type)

"""The known architectures, found by a model's type."""

from collections.abc import Callable
from importlib import import_module

import torch
from transformers import PreTrainedModel

from ziplm.architectures.base import Architecture
from ziplm.errors import UnsupportedModel

_BUILT_IN = {"bert": "bert:BertArchitecture", "gpt2": "gpt2:GPT2Architecture"}
"""File and class of each built-in architecture, imported when it is first needed."""

_REGISTERED: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Make an architecture known under its model types, in place of any other one."""
    _REGISTERED.update(dict.fromkeys(architecture.model_types, architecture))


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the architecture of a model.

    Raises:
        UnsupportedModel: if the architecture is unknown, or this particular model cannot be pruned.
    """
    model_type = model.config.model_type
    if model_type not in _REGISTERED:
        _load_built_in(model_type.removeprefix("zip_"))
    if model_type not in _REGISTERED:
        names = {*_BUILT_IN, *(name for name in _REGISTERED if not name.startswith("zip_"))}
        raise UnsupportedModel(
            f"models of type {model_type!r} are not known", f"ziplm shrinks: {', '.join(sorted(names))}"
        )
    architecture = _REGISTERED[model_type]
    architecture.check(model)
    return architecture


def language_head(model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from a model's last hidden states (..., hidden) to logits (..., vocabulary)."""
    return architecture_of(model).language_head(model)


def _load_built_in(name: str) -> None:
    if name in _BUILT_IN:
        file, _, class_name = _BUILT_IN[name].partition(":")
        architecture: Architecture = getattr(import_module(f"{__package__}.{file}"), class_name)()
        for model_type in architecture.model_types:
            _REGISTERED.setdefault(model_type, architecture)

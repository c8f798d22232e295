"""Make a fine-tuned transformer faster by a stated factor on a stated machine."""

import warnings
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from ziplm.api import compress, evaluate, export, finetune
    from ziplm.architectures.checkpoint import load, save
    from ziplm.architectures.inspection import inspect
    from ziplm.architectures.registry import register
    from ziplm.errors import (
        BadCheckpoint,
        BadRun,
        MissingExtra,
        NotFinite,
        UnreachableTarget,
        UnsupportedModel,
        UsageError,
        ZipLMError,
    )
    from ziplm.options.options import Options
    from ziplm.results.family import Family, Member
    from ziplm.stages.shrink import mask, shrink

__version__ = version("ziplm")

__all__ = [
    "BadCheckpoint",
    "BadRun",
    "Family",
    "Member",
    "MissingExtra",
    "NotFinite",
    "Options",
    "UnreachableTarget",
    "UnsupportedModel",
    "UsageError",
    "ZipLMError",
    "compress",
    "evaluate",
    "export",
    "finetune",
    "inspect",
    "load",
    "mask",
    "register",
    "save",
    "shrink",
]

_PLACES = {
    **dict.fromkeys(("compress", "evaluate", "export", "finetune"), "api"),
    **dict.fromkeys(("load", "save"), "architectures.checkpoint"),
    "inspect": "architectures.inspection",
    "register": "architectures.registry",
    "Options": "options.options",
    **dict.fromkeys(("Family", "Member"), "results.family"),
    **dict.fromkeys(("mask", "shrink"), "stages.shrink"),
    **dict.fromkeys(
        (name for name in __all__ if name.startswith(("Bad", "Missing", "Not", "Un", "Us", "Zip"))), "errors"
    ),
}
"""The module of each public name, imported when the name is first used."""

_OLD_NAMES = {
    "Adapter": ("architectures.base", "Architecture", "ziplm.architectures.base.Architecture"),
    "Compressed": ("results.family", "Member", "ziplm.Member"),
    "Config": ("options.options", "Options", "ziplm.Options"),
    "Inspection": ("architectures.inspection", "Inspection", "ziplm.architectures.inspection.Inspection"),
    "Module": ("architectures.base", "Branch", "ziplm.architectures.base.Branch"),
    "adapter_for": (
        "architectures.registry",
        "architecture_of",
        "ziplm.architectures.registry.architecture_of",
    ),
    "inspect_checkpoint": ("architectures.inspection", "inspect", "ziplm.inspect"),
    "inspect_model": ("architectures.inspection", "inspect", "ziplm.inspect"),
}
"""Names of version 0.1: module, new name in it, and what to use instead. They go away after 0.2."""


def _register(_: Any) -> None:
    """Let the Auto classes of transformers load shrunk models."""
    import_module("ziplm.architectures.zip_classes")


# Runs when the Auto classes are first imported, not now: importing transformers takes seconds.
wrapt.register_post_import_hook(_register, "transformers.models.auto.modeling_auto")


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"ziplm.{_PLACES[name]}"), name)
    if name in _OLD_NAMES:
        module, new_name, instead = _OLD_NAMES[name]
        warnings.warn(f"ziplm.{name} is deprecated; use {instead}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"ziplm.{module}"), new_name)
    raise AttributeError(f"module 'ziplm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

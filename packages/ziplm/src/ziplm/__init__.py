"""Make a fine-tuned BERT or GPT2 faster by a stated factor on a stated machine."""

from ziplm.adapters import Adapter, Module, adapter_for, register
from ziplm.checkpoint import load, save
from ziplm.errors import BadCheckpoint, UnsupportedModel, UsageError, ZipLMError
from ziplm.inspection import Inspection, inspect_checkpoint, inspect_model
from ziplm.shrink import mask, shrink

__all__ = [
    "Adapter",
    "BadCheckpoint",
    "Inspection",
    "Module",
    "UnsupportedModel",
    "UsageError",
    "ZipLMError",
    "adapter_for",
    "inspect_checkpoint",
    "inspect_model",
    "load",
    "mask",
    "register",
    "save",
    "shrink",
]

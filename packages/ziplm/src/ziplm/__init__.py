"""Make a fine-tuned BERT or GPT2 faster by a stated factor on a stated machine."""

from ziplm.adapters import Adapter, Module, adapter_for, register
from ziplm.checkpoint import load, save
from ziplm.compress import Compressed, compress
from ziplm.config import Config
from ziplm.errors import (
    BadCheckpoint,
    BadRun,
    UnreachableTarget,
    UnsupportedModel,
    UsageError,
    ZipLMError,
)
from ziplm.inspection import Inspection, inspect_checkpoint, inspect_model
from ziplm.shrink import mask, shrink

__all__ = [
    "Adapter",
    "BadCheckpoint",
    "BadRun",
    "Compressed",
    "Config",
    "Inspection",
    "Module",
    "UnreachableTarget",
    "UnsupportedModel",
    "UsageError",
    "ZipLMError",
    "adapter_for",
    "compress",
    "inspect_checkpoint",
    "inspect_model",
    "load",
    "mask",
    "register",
    "save",
    "shrink",
]

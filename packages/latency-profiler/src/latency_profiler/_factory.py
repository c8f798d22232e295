"""Factories named on a command line: ``package.module:build``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from latency_profiler._errors import FactoryError, one_line
from latency_profiler._profile import Build


def import_factory(name: str) -> Build:
    """Import ``package.module:build``; modules of the working folder are found too."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise FactoryError(
            f"{name!r} names no factory",
            "write package.module:function, or transformer_layer, transformer_attention, transformer_ffn",
        )
    folder = str(Path.cwd())
    if folder not in sys.path:  # a console script has its own folder there, not the working folder
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise FactoryError(
            f"cannot import {module_name}: {one_line(error)}",
            "install it, or start in the folder that holds it",
        ) from error
    build = getattr(module, function_name, None)
    if not callable(build):
        found = "cannot be called" if hasattr(module, function_name) else "does not exist"
        raise FactoryError(f"{function_name} in {module_name} {found}", "name a function of one size")
    return build  # type: ignore[no-any-return]


def on_device(build: Build, device: torch.device, dtype: torch.dtype) -> Build:
    """The same factory with its modules moved to the device and the dtype."""

    def moved(size: int) -> Callable[..., object]:
        module = build(size)
        return module.to(device, dtype) if isinstance(module, torch.nn.Module) else module

    return moved

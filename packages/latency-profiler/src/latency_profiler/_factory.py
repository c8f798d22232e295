"""Factories given on the command line as ``package.module:function``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from latency_profiler._errors import FactoryError, one_line
from latency_profiler._profile import Build


def import_factory(name: str) -> Build:
    """Import the factory ``package.module:function``; the module may be in the working folder.

    Raises:
        FactoryError: The name has another form, the import fails, or the function does not exist or is not
            callable.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise FactoryError(
            f"{name!r} is not the name of a factory",
            "use package.module:function, transformer_layer, transformer_attention or transformer_ffn",
        )
    folder = str(Path.cwd())
    if folder not in sys.path:  # the path of a console script starts with the script's folder instead
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise FactoryError(
            f"cannot import {module_name}: {one_line(error)}",
            "install it, or run the command in the folder that contains it",
        ) from error
    build = getattr(module, function_name, None)
    if not callable(build):
        problem = "is not callable" if hasattr(module, function_name) else "does not exist"
        raise FactoryError(
            f"{function_name} in {module_name} {problem}",
            "name a function that takes a size and returns a module",
        )
    return build  # type: ignore[no-any-return]


def on_device(build: Build, device: torch.device, dtype: torch.dtype) -> Build:
    """Wrap a factory so that it moves its modules to the device and the dtype."""

    def build_on_device(size: int) -> Callable[..., object]:
        module = build(size)
        return module.to(device, dtype) if isinstance(module, torch.nn.Module) else module

    return build_on_device

"""Checks and wrappers for the callables that are timed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from latency_profiler._errors import NotFinite, OutputError, one_line


def in_inference_mode(function: Callable[..., object]) -> Callable[..., object]:
    """Wrap a module so that it runs under `torch.inference_mode()`.

    Any other callable is returned unchanged, because it may be a training step.
    """
    return torch.inference_mode()(function.__call__) if isinstance(function, torch.nn.Module) else function


def device_of(function: Callable[..., object], arguments: Iterable[object]) -> torch.device:
    """Return the device of the first tensor argument, else of the first parameter, else the CPU."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            return value.device
    if isinstance(function, torch.nn.Module):
        for parameter in function.parameters():
            return parameter.device
    return torch.device("cpu")


def check_output(function: Callable[..., object], arguments: tuple[Any, ...], name: str) -> None:
    """Call the function once and raise OutputError if it fails, or NotFinite if outputs are NaN or infinite.

    Args:
        function: The callable to check.
        arguments: Its positional arguments.
        name: What error messages call the function.
    """
    try:
        output = function(*arguments)
    except Exception as error:
        shapes = ", ".join(_describe(value) for value in arguments)
        raise OutputError(
            f"{name} failed when called with ({shapes}): {one_line(error)}",
            "check that the input shapes, dtype and device fit the module",
        ) from error
    for tensor in tensors_in(output):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFinite(
                f"{name} returned non-finite values",
                "times measured on NaN and inf are misleading: check the weights, or try another dtype",
            )


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """Iterate over the tensors in nested tuples, lists and mappings, such as model outputs."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__

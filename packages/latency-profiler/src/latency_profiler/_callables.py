"""What is timed: any callable; modules without gradients; outputs that must be finite."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from latency_profiler._errors import OutputError, one_line


def in_inference_mode(function: Callable[..., object]) -> Callable[..., object]:
    """A module is called without gradients; any other callable stays as it is (it may be a training step)."""
    return torch.inference_mode()(function.__call__) if isinstance(function, torch.nn.Module) else function


def device_of(function: Callable[..., object], arguments: Iterable[object]) -> torch.device:
    """Where the work happens: the device of the first tensor among the arguments, else of the parameters."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            return value.device
    if isinstance(function, torch.nn.Module):
        for parameter in function.parameters():
            return parameter.device
    return torch.device("cpu")


def check_output(function: Callable[..., object], arguments: tuple[Any, ...], name: str) -> None:
    """Call once; raise OutputError if that fails or if any floating-point output is not finite."""
    try:
        output = function(*arguments)
    except Exception as error:
        shapes = ", ".join(_describe(value) for value in arguments)
        raise OutputError(
            f"{name} cannot be called with ({shapes}): {one_line(error)}",
            "check that the input shapes, dtype and device fit the module",
        ) from error
    for tensor in tensors_in(output):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise OutputError(
                f"{name} returns values that are not finite",
                "timings of nan and inf mislead: check its weights, or try another dtype",
            )


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """All tensors in nested tuples, lists and mappings (which model outputs are)."""
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

"""Modules whose inputs and outputs are tensors only, as exporters need them, and silence while they run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from latency_profiler._callables import tensors_in
from latency_profiler._errors import EngineError, OptionError

ExampleInputs = torch.Tensor | tuple[Any, ...] | Mapping[str, Any]


class TensorModule(torch.nn.Module):
    """A callable with example inputs, as a module from its tensor inputs to a tuple of its tensor outputs.

    Exporters differ in what they make of None, numbers, keyword arguments and nested outputs; here, tensors
    among the arguments become inputs, and everything else stays what it was in the example.
    """

    def __init__(self, function: Callable[..., object], inputs: ExampleInputs) -> None:
        super().__init__()
        self.function = function
        self._inputs: tuple[Any, ...] | Mapping[str, Any] = (
            (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        )
        self.eval()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors of the example, in the order of `forward`'s arguments."""
        return tuple(tensors_in(self._inputs))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs: those of keyword arguments if each is one tensor, else input_0, …, input_n."""
        if isinstance(self._inputs, Mapping):
            named = {name: value for name, value in self._inputs.items() if isinstance(value, torch.Tensor)}
            if len(named) == len(self.tensors):
                return tuple(named)
        return tuple(f"input_{index}" for index in range(len(self.tensors)))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function with the example's arguments, their tensors being replaced by `tensors`."""
        arguments = _with_tensors(self._inputs, iter(tensors))
        output = self.function(**arguments) if isinstance(arguments, Mapping) else self.function(*arguments)
        return tuple(tensors_in(output))

    def check(self, engine: str) -> None:
        """Raise EngineError if an engine for CPUs cannot take the tensors of the example."""
        if not self.tensors:
            raise EngineError(
                f"{engine} needs inputs with at least one tensor", "give the module's tensors as inputs"
            )
        for tensor in (*self.tensors, *self.parameters()):
            if tensor.device.type != "cpu":
                raise EngineError(
                    f"{engine} runs on the CPU here, and a tensor is on {tensor.device.type}",
                    "move the module and its inputs to the CPU, or use the engine eager or compile",
                )
            if tensor.dtype == torch.bfloat16:
                raise EngineError(f"{engine} does not run bfloat16 here", "use float32")


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return the value with its tensors replaced in order, inside tuples, lists and mappings, too."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {name: _with_tensors(item, tensors) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def unique_names(given: Sequence[str] | None, count: int, prefix: str) -> tuple[str, ...]:
    """Return the given names after a check, or ``prefix_0``, …, ``prefix_n``."""
    if given is None:
        return tuple(f"{prefix}_{index}" for index in range(count))
    if len(given) != count or len(set(given)) != count:
        raise OptionError(
            f"there are {count} tensors, and {len(set(given))} different names for them",
            f"give one {prefix} name for each tensor",
        )
    return tuple(given)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep exporters and quantisers from printing, logging, warning and reporting usage over the network.

    ONNX Runtime's quantiser logs advice on the root logger, which would install a handler there; NNCF prints
    progress bars; OpenVINO and NNCF send usage data without asking unless they run in a CI job.
    """
    root, level = logging.getLogger(), logging.root.manager.disable
    handler, ci = logging.NullHandler(), os.environ.get("CI")
    root.addHandler(handler)
    logging.disable(max(level, logging.WARNING))
    os.environ["CI"] = "true"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.removeHandler(handler)
        os.environ.pop("CI")
        if ci is not None:
            os.environ["CI"] = ci

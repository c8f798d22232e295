"""Engines: what turns a module into the callable that is timed."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, Protocol

import torch

from latency_profiler._errors import EngineError, OptionError, one_line

EngineName = Literal["eager", "compile"]


class Engine(Protocol):
    """What the profiler asks of an engine.

    An engine that exports (ONNX Runtime, OpenVINO) does so in `prepare`, with `example_inputs`, and returns
    a callable that takes the same tensors.
    """

    @property
    def name(self) -> str:
        """What is recorded in the environment."""

    def versions(self) -> Mapping[str, str]:
        """The versions, by package, that the times depend on."""

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """A callable that does what `module` does in inference, ready to be timed."""


class EagerEngine:
    """Torch as it is: modules in eval mode, no gradients."""

    name = "eager"

    def versions(self) -> Mapping[str, str]:
        """The version of torch."""
        return {"torch": str(torch.__version__)}

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """The module in eval mode, called under `torch.inference_mode()`."""
        del example_inputs
        if isinstance(module, torch.nn.Module):
            module.eval()
        return torch.inference_mode()(lambda *args: module(*args))


class CompileEngine(EagerEngine):
    """`torch.compile` with static shapes; compiled in `prepare`, so that no compilation is timed."""

    name = "compile"

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """The compiled module, called once with the example inputs."""
        if isinstance(module, torch.nn.Module):
            module.eval()
        # Inference mode goes around: torch.compile skips functions that wear a decorator of torch itself.
        compiled = torch.compile(_with_own_code(module), backend=self.backend, dynamic=False)
        call = torch.inference_mode()(compiled)
        try:
            call(*example_inputs)
        except Exception as error:
            raise EngineError(
                f"torch.compile failed: {one_line(error)}",
                "check that the module runs with engine 'eager', and that a C++ compiler is installed",
            ) from error
        return call


def _with_own_code(module: Callable[..., object]) -> Callable[..., object]:
    """A function that calls `module` and shares its code object with no other.

    torch.compile keeps its compiled graphs by code object and gives up, silently running eager code, after
    eight; a family of sizes would share one.
    """

    def call(*args: object) -> object:
        return module(*args)

    assert isinstance(call, FunctionType)
    call.__code__ = call.__code__.replace()
    return call


_ENGINES: dict[str, Callable[[], Engine]] = {"eager": EagerEngine, "compile": CompileEngine}


def resolve_engine(engine: EngineName | Engine) -> Engine:
    """The engine of that name; an engine object is returned as it is."""
    if not isinstance(engine, str):
        return engine
    if engine not in _ENGINES:
        raise OptionError(f"engine {engine!r} is not known", f"use one of {', '.join(_ENGINES)} or an Engine")
    return _ENGINES[engine]()

"""Engines, which turn a module into the callable that is timed. Torch is imported when one is used."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, Protocol

from latency_profiler._errors import EngineError, OptionError, one_line

EngineName = Literal["eager", "compile", "onnxruntime", "openvino"]
Quantization = Literal["int8"]


class Engine(Protocol):
    """Interface of an engine.

    An engine that needs an exported model (ONNX Runtime, OpenVINO) exports it in `prepare`, using
    `example_inputs`, and returns a callable that takes the same tensors. An engine with threads of its own
    has an attribute `threads` (None for torch's setting), and so has the callable; an engine that quantises
    has an attribute `quantize`. One with other settings that latencies depend on has a method `details()`.
    """

    @property
    def name(self) -> str:
        """Name recorded in the environment."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the packages that latencies depend on, by package name."""

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Return a callable that computes what `module` computes at inference, ready to be timed."""


class EagerEngine:
    """Plain torch: modules run in eval mode without gradients."""

    name = "eager"

    def versions(self) -> Mapping[str, str]:
        """Return the version of torch."""
        import torch

        return {"torch": str(torch.__version__)}

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Put the module into eval mode and return a callable that runs it under `torch.inference_mode()`."""
        import torch

        del example_inputs
        if isinstance(module, torch.nn.Module):
            module.eval()
        return torch.inference_mode()(lambda *args: module(*args))


class CompileEngine(EagerEngine):
    """`torch.compile` with static shapes. Compilation happens in `prepare`, so it is never timed."""

    name = "compile"

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Compile the module by calling it once with the example inputs, and return the compiled callable.

        Raises:
            EngineError: Compilation or the call fails.
        """
        import torch

        if isinstance(module, torch.nn.Module):
            module.eval()
        # Apply inference mode last: torch.compile skips functions that carry one of torch's own decorators.
        compiled = torch.compile(_with_unique_code_object(module), backend=self.backend, dynamic=False)
        call = torch.inference_mode()(compiled)
        try:
            call(*example_inputs)
        except Exception as error:
            raise EngineError(
                f"torch.compile failed: {one_line(error)}",
                "check that the module runs with engine 'eager', and that a C++ compiler is installed",
            ) from error
        return call


def _with_unique_code_object(module: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls `module` and has a code object of its own.

    torch.compile caches compiled graphs per code object; after eight graphs it gives up and silently runs
    eager code. Without this, all sizes of a family would share one code object.
    """

    def call(*args: object) -> object:
        return module(*args)

    assert isinstance(call, FunctionType)
    call.__code__ = call.__code__.replace()
    return call


def _onnxruntime(quantize: Quantization | None, threads: int | None) -> Engine:
    from latency_profiler._onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(quantize, threads)


def _openvino(quantize: Quantization | None, threads: int | None) -> Engine:
    from latency_profiler._openvino import OpenVinoEngine

    return OpenVinoEngine(quantize, threads)


_TORCH: dict[str, Callable[[], Engine]] = {"eager": EagerEngine, "compile": CompileEngine}
_EXPORTING: dict[str, Callable[[Quantization | None, int | None], Engine]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


def resolve_engine(
    engine: EngineName | Engine, quantize: Quantization | None = None, threads: int | None = None
) -> Engine:
    """Return the engine with the given name; engine objects are returned unchanged.

    Args:
        engine: "eager", "compile", "onnxruntime", "openvino", or an `Engine` object.
        quantize: None, or "int8" for a named engine that quantises: onnxruntime or openvino.
        threads: Number of threads of onnxruntime and openvino; None takes torch's setting at the time of
            `Engine.prepare`.

    Raises:
        OptionError: The name is unknown, or the engine does not quantise.
        MissingExtra: A package of the engine is not installed.
    """
    if not isinstance(engine, str):
        return engine
    if engine in _EXPORTING:
        return _EXPORTING[engine](quantize, threads)
    if engine not in _TORCH:
        raise OptionError(
            f"unknown engine {engine!r:.60}",
            f"use one of {', '.join((*_TORCH, *_EXPORTING))} or an Engine object",
        )
    if quantize is not None:
        raise OptionError(f"the engine {engine} does not quantise", f"use {' or '.join(_EXPORTING)}")
    return _TORCH[engine]()

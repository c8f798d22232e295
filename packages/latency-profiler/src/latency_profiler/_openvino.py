"""The engine OpenVINO: converts, quantises and loads models, and converts modules in order to time them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latency_profiler._errors import EngineError, OptionError, ProfilerError, one_line, require, shortened
from latency_profiler._exportable import ExampleInputs, TensorModule, quiet_libraries, unique_names
from latency_profiler._extras import require_extra, versions_of
from latency_profiler._files import atomic_files
from latency_profiler._loaded import Array, LoadedModel, TensorCall, as_array
from latency_profiler._probe import ISA_VARIABLE, choose_instructions
from latency_profiler._threads import checked_threads, threads_or_torch

PRECISIONS = ("f32", "bf16", "f16")


class OpenVinoModel(LoadedModel):
    """Model in OpenVINO, on the CPU; made by `load_openvino`.

    Args:
        compiled: OpenVINO's compiled model.
        threads: Number of threads that it was compiled for.
        share_outputs: Return OpenVINO's own memory rather than copies of it; the next call overwrites it.
    """

    def __init__(self, compiled: Any, threads: int, *, share_outputs: bool = False) -> None:
        shapes = {
            port.any_name: [None if size.is_dynamic else size.get_length() for size in port.partial_shape]
            for port in compiled.inputs
        }
        outputs = [
            next(iter(sorted(port.names)), f"output_{index}") for index, port in enumerate(compiled.outputs)
        ]
        super().__init__("openvino", shapes, outputs, threads)
        self._request = compiled.create_infer_request()
        self._share_outputs = share_outputs

    def _infer(self, arrays: list[Array]) -> Sequence[Array]:
        results = self._request.infer(arrays, share_inputs=True, share_outputs=self._share_outputs)
        return tuple(results.values())


def convert_openvino(
    source: str | Path | Callable[..., object], destination: str | Path, inputs: ExampleInputs | None = None
) -> Path:
    """Convert an ONNX file or a module to OpenVINO's format; weights keep their precision.

    Args:
        source: ONNX file, or a module or other callable of tensors on the CPU.
        destination: File to write, ending in .xml; the weights are written beside it, ending in .bin.
        inputs: Inputs of a module, as for `export_onnx`; None for a file.

    Returns:
        The destination.

    Raises:
        MissingExtra: openvino or nncf is not installed.
        OptionError: The destination has another ending, or a module has no inputs.
        EngineError: The source cannot be read or converted.
    """
    destination = _checked_xml(destination)
    return _save(_convert(source, inputs), destination)


def quantize_openvino(
    source: str | Path, destination: str | Path, samples: Iterable[Mapping[str, Any] | Sequence[Any]]
) -> Path:
    """Quantise a model to int8 with NNCF's post-training quantisation for transformers.

    Args:
        source: File in OpenVINO's format (.xml), or an ONNX file.
        destination: File to write, ending in .xml.
        samples: Inputs of the model, each as arrays or tensors by input name, or in the order of the inputs.

    Returns:
        The destination.

    Raises:
        MissingExtra: openvino or nncf is not installed.
        OptionError: The destination has another ending, or there are no samples.
        EngineError: The source cannot be read or quantised.
    """
    destination = _checked_xml(destination)
    return _save(_quantize(_read(source), samples), destination)


def load_openvino(path: str | Path, threads: int | None = None, *, precision: str = "f32") -> OpenVinoModel:
    """Load a file into OpenVINO: ``load_openvino("model.xml", threads=1)(ids, mask)``.

    Args:
        path: File in OpenVINO's format (.xml), or an ONNX file; in float32 or quantised.
        threads: Number of threads that compute; None takes torch's current setting.
        precision: OpenVINO's precision of what is not quantised: "f32", "bf16" or "f16". OpenVINO itself
            would choose bf16 on some CPUs, and differ from the model that was exported.

    Raises:
        MissingExtra: openvino or nncf is not installed.
        OptionError: The number of threads is out of range, or the precision is unknown.
        EngineError: The file cannot be read or run, or this CPU fails at the precision.
    """
    require(precision in PRECISIONS, f"precision is {precision!r:.40}", f"use {', '.join(PRECISIONS)}")
    return OpenVinoModel(*_compile(_read(path), threads, precision))


class OpenVinoEngine:
    """OpenVINO on the CPU. Modules are converted, and optionally quantised, in `prepare`.

    The tensors that a prepared callable returns are valid until it is called again.

    Args:
        quantize: None for float32; "int8" quantises as `quantize_openvino` does, with the example inputs as
            the only sample.
        threads: Number of threads that compute; None takes torch's setting at the time of `prepare`.
    """

    name = "openvino"

    def __init__(self, quantize: str | None = None, threads: int | None = None) -> None:
        require(quantize in (None, "int8"), f"quantize is {quantize!r:.40}", "use 'int8' or None")
        require_extra("openvino")
        self.quantize = quantize
        self.threads = None if threads is None else checked_threads(threads)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of torch, OpenVINO and, for int8, NNCF."""
        return versions_of("torch", "openvino", *(("nncf",) if self.quantize else ()))

    def details(self) -> Mapping[str, str]:
        """Return the instruction set that OpenVINO is limited to, if it is, for the environment."""
        limit = choose_instructions("f32")
        return {ISA_VARIABLE: limit} if limit else {}

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Convert the module for inputs of these shapes, and return a callable from tensors to tensors.

        Raises:
            EngineError: The module cannot be converted, quantised or loaded.
        """
        model = _convert(module, example_inputs)
        if self.quantize:
            model = _quantize(model, [TensorModule(module, example_inputs).tensors])
        return TensorCall(OpenVinoModel(*_compile(model, self.threads, "f32"), share_outputs=True))


def openvino(precision: str = "f32") -> Any:
    """Import OpenVINO, after making it safe to use on this CPU."""
    require_extra("openvino")
    choose_instructions(precision)
    with quiet_libraries():
        import openvino

    return openvino


@functools.cache
def _core(precision: str = "f32") -> Any:
    return openvino(precision).Core()


def _read(path: str | Path) -> Any:
    core = _core()
    try:
        return core.read_model(str(path))
    except Exception as error:
        raise EngineError(
            f"OpenVINO cannot read {shortened(path)}: {one_line(error)}",
            "give a file in OpenVINO's format (.xml) or an ONNX file",
        ) from error


def _convert(source: str | Path | Callable[..., object], inputs: ExampleInputs | None) -> Any:
    if isinstance(source, (str, Path)):
        return _read(source)
    if inputs is None:
        raise OptionError("a module is converted for inputs of stated shapes", "give inputs")
    ov = openvino()
    module = TensorModule(source, inputs)
    module.check("openvino")
    shapes = [ov.PartialShape(list(tensor.shape)) for tensor in module.tensors]
    try:
        with quiet_libraries():
            model = ov.convert_model(module, example_input=module.tensors, input=shapes)
    except Exception as error:
        raise EngineError(
            f"OpenVINO cannot convert the module: {one_line(error)}",
            "check that the module runs with engine 'eager'",
        ) from error
    for port, name in zip(model.inputs, module.names, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, unique_names(None, len(model.outputs), "output"), strict=True):
        port.get_tensor().set_names({name})
    return model


def _quantize(model: Any, samples: Iterable[Mapping[str, Any] | Sequence[Any]]) -> Any:
    feeds = [
        {name: as_array(value) for name, value in sample.items()}
        if isinstance(sample, Mapping)
        else [as_array(value) for value in sample]
        for sample in samples
    ]
    if not feeds:
        raise OptionError("there are no samples to calibrate with", "give at least one")
    for feed in feeds:
        _require_all_inputs(model, feed)
    try:
        with quiet_libraries():
            import nncf

            return nncf.quantize(
                model, nncf.Dataset(feeds), subset_size=len(feeds), model_type=nncf.ModelType.TRANSFORMER
            )
    except Exception as error:
        raise EngineError(
            f"NNCF cannot quantise the model: {one_line(error)}",
            "check that the model runs in OpenVINO, or do without int8",
        ) from error


def _require_all_inputs(model: Any, feed: dict[str, Array] | list[Array]) -> None:
    """Refuse a sample without some input: OpenVINO would calibrate with whatever is in memory there."""
    if isinstance(feed, dict):
        absent = [port.any_name for port in model.inputs if not port.get_names() & feed.keys()]
        require(not absent, f"a sample has no input {', '.join(absent)}", "give all inputs of the model")
    else:
        wanted = len(model.inputs)
        require(len(feed) == wanted, f"a sample has {len(feed)} inputs", f"give all {wanted} of the model")


def _compile(model: Any, threads: int | None, precision: str) -> tuple[Any, int]:
    threads = threads_or_torch(threads)
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # Like torch and ONNX Runtime: use as many threads as asked for, on whichever cores are free.
        "ENABLE_HYPER_THREADING": True,
        "ENABLE_CPU_PINNING": False,
    }
    try:
        return _core(precision).compile_model(model, "CPU", settings), threads
    except ProfilerError:
        raise
    except Exception as error:
        raise EngineError(
            f"OpenVINO cannot load the model: {one_line(error)}", "give a model that it can run"
        ) from error


def _save(model: Any, destination: Path) -> Path:
    with atomic_files(destination) as temporary:
        openvino().save_model(model, str(temporary), compress_to_fp16=False)
    return destination


def _checked_xml(destination: str | Path) -> Path:
    path = Path(destination)
    require(path.suffix == ".xml", f"{shortened(path)} does not end in .xml", "name the file NAME.xml")
    return path

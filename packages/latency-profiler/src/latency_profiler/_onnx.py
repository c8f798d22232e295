"""ONNX files: export of modules, and post-training quantisation to int8."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from latency_profiler._cpu import has_int8_instructions
from latency_profiler._errors import EngineError, OptionError, one_line, shortened
from latency_profiler._exportable import ExampleInputs, TensorModule, quiet_libraries, unique_names
from latency_profiler._extras import require_extra
from latency_profiler._files import atomic_files
from latency_profiler._loaded import Array, as_array
from latency_profiler._torchlib import shared_operators

# A protocol buffer holds less than 2 GiB; weights beyond that go to a second file, NAME.data.
LARGEST_SINGLE_FILE = (1 << 31) - (1 << 26)
QUANTIZED_OPERATORS = ["MatMul", "Gemm"]


def export_onnx(
    module: Callable[..., object],
    inputs: ExampleInputs,
    path: str | Path,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Path:
    """Export a module to an ONNX file, for inputs of these shapes: ``export_onnx(module, x, "model.onnx")``.

    The module is put into eval mode. Tensors among the inputs become inputs of the file, other values are
    kept as constants, and all tensors of the output become outputs of the file.

    Args:
        module: Module, or another callable of tensors, on the CPU.
        inputs: Tensor, tuple of arguments, or keyword arguments by name.
        path: File to write. Weights of 2 GB and more are written to a second file, ``path`` + ".data".
        input_names: Names of the inputs in the file; by default those of keyword arguments, else ``input_0``,
            ``input_1``, …
        output_names: Names of the outputs; by default ``output_0``, ``output_1``, …

    Returns:
        The path.

    Raises:
        MissingExtra: onnx, onnxruntime or onnxscript is not installed.
        EngineError: The module cannot be exported.
    """
    require_extra("onnxruntime")
    import torch

    path, wrapped = Path(path), TensorModule(module, inputs)
    wrapped.check("onnxruntime")
    weights = [*wrapped.parameters(), *wrapped.buffers()]
    large = sum(value.numel() * value.element_size() for value in weights) > LARGEST_SINGLE_FILE
    try:
        with quiet_libraries(), torch.no_grad(), shared_operators():
            outputs = len(wrapped(*wrapped.tensors))
            names = unique_names(input_names or wrapped.names, len(wrapped.tensors), "input")
            program = torch.onnx.export(
                wrapped,
                wrapped.tensors,
                dynamo=True,
                verbose=False,
                input_names=names,
                output_names=unique_names(output_names, outputs, "output"),
            )
    except OptionError:
        raise
    except Exception as error:
        raise EngineError(
            f"torch.onnx.export failed: {one_line(error)}",
            "check that the module runs with engine 'eager'",
        ) from error
    assert program is not None
    with atomic_files(path) as temporary:
        program.save(temporary, external_data=large)
    return path


def quantize_onnx(source: str | Path, destination: str | Path, *, reduce_range: bool | None = None) -> Path:
    """Quantise the weights of an ONNX file's matrix products to int8, one scale per output channel.

    Activations are quantised dynamically, with a scale for each tensor that is computed when the model runs,
    so that no samples are needed. Products of two activations, and everything else, stay as they are.

    Args:
        source: ONNX file.
        destination: ONNX file to write.
        reduce_range: Use 7 bits, so that the sums of CPUs without dot-product instructions cannot saturate;
            None does so if this CPU has none (`has_int8_instructions`).

    Returns:
        The destination.

    Raises:
        MissingExtra: onnx, onnxruntime or onnxscript is not installed.
        EngineError: The file cannot be read or quantised.
    """
    require_extra("onnxruntime")
    with quiet_libraries():
        from onnxruntime.quantization import QuantType, quantize_dynamic

    model, large = _read_onnx(Path(source))

    def quantize(temporary: Path) -> None:
        quantize_dynamic(
            model,
            temporary,
            op_types_to_quantize=QUANTIZED_OPERATORS,
            per_channel=True,
            reduce_range=_reduced(reduce_range),
            weight_type=QuantType.QInt8,
            use_external_data_format=large,
            extra_options={"MatMulConstBOnly": True, **_float_by_default()},
        )

    return _write_quantized(Path(source), Path(destination), quantize)


def quantize_onnx_static(
    source: str | Path,
    destination: str | Path,
    samples: Iterable[Mapping[str, Any] | Sequence[Any]],
    *,
    reduce_range: bool | None = None,
) -> Path:
    """Quantise the matrix products of an ONNX file to int8, with activation scales taken from samples.

    Like `quantize_onnx`, except that the range of each activation is fixed: from the smallest to the largest
    value that it has in the samples.

    Args:
        source: ONNX file.
        destination: ONNX file to write.
        samples: Inputs of the model, each as arrays or tensors by input name, or in the order of the inputs.
        reduce_range: As for `quantize_onnx`.

    Returns:
        The destination.

    Raises:
        MissingExtra: onnx, onnxruntime or onnxscript is not installed.
        OptionError: There are no samples.
        EngineError: The file cannot be read or quantised, or cannot run a sample.
    """
    require_extra("onnxruntime")
    with quiet_libraries():
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model, large = _read_onnx(Path(source))
    constants = {value.name for value in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    weighted = [
        node.name
        for node in model.graph.node
        if node.op_type in QUANTIZED_OPERATORS and len(node.input) > 1 and node.input[1] in constants
    ]
    feeds = [_feed(sample, names) for sample in samples]
    if not feeds:
        raise OptionError("there are no samples to calibrate with", "give at least one")

    def quantize(temporary: Path) -> None:
        quantize_static(
            model,
            temporary,
            _reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=QUANTIZED_OPERATORS,
            nodes_to_quantize=weighted,
            per_channel=True,
            reduce_range=_reduced(reduce_range),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=large,
            extra_options=_float_by_default(),
        )

    if not weighted:  # an empty list would mean every node
        return quantize_onnx(source, destination, reduce_range=reduce_range)
    return _write_quantized(Path(source), Path(destination), quantize)


def _read_onnx(path: Path) -> tuple[Any, bool]:
    """Return a model without its inferred shapes, and whether it is too large for a single file.

    Shapes that an exporter recorded for inner values can contradict what the quantiser infers, and end in a
    ShapeInferenceError; it infers those that it needs.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
        files = [path, *(path.parent / name for name in _data_files(model))]
        onnx.load_external_data_for_model(model, str(path.parent))  # the model then no longer names the files
    except Exception as error:  # protobuf, onnx and the system each have their own
        raise EngineError(
            f"cannot read {shortened(path)}: {one_line(error)}", "give an ONNX file that can be read"
        ) from error
    model.graph.ClearField("value_info")
    return model, sum(file.stat().st_size for file in files if file.exists()) > LARGEST_SINGLE_FILE


def _data_files(model: Any) -> set[str]:
    """Return the names of the files that hold the weights of a model outside of its own file."""
    return {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location" and os.sep not in entry.value
    }


def _write_quantized(source: Path, destination: Path, quantize: Callable[[Path], None]) -> Path:
    with atomic_files(destination) as temporary:
        try:
            with quiet_libraries():
                quantize(temporary)
        except OSError:
            raise
        except Exception as error:
            raise EngineError(
                f"{shortened(source)} cannot be quantised: {one_line(error)}",
                "check that the file runs in ONNX Runtime, or do without int8",
            ) from error
    return destination


def _float_by_default() -> dict[str, Any]:
    """Options of the quantiser: a value whose type is not recorded is float32."""
    import onnx

    return {"DefaultTensorType": onnx.TensorProto.FLOAT}


def _reduced(reduce_range: bool | None) -> bool:
    return not has_int8_instructions() if reduce_range is None else reduce_range


def _feed(sample: Mapping[str, Any] | Sequence[Any], names: Sequence[str]) -> dict[str, Array]:
    named = sample if isinstance(sample, Mapping) else dict(zip(names, sample, strict=False))
    return {name: as_array(named[name]) for name in names if name in named}


def _reader(feeds: Sequence[dict[str, Array]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime has no types
        """Hands out the samples one by one, then None."""

        def __init__(self) -> None:
            self.feeds: Iterator[dict[str, Array]] = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.feeds, None)

    return Reader()

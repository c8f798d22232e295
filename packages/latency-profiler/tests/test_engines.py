"""Every engine computes what eager torch computes, at every size, in float32 and within int8's error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from latency_profiler import (
    EagerEngine,
    Engine,
    LoadedModel,
    OnnxRuntimeEngine,
    OpenVinoEngine,
    OptionError,
    convert_openvino,
    export_onnx,
    load_onnx,
    load_openvino,
    quantize_onnx,
    quantize_onnx_static,
    quantize_openvino,
)
from latency_profiler.blocks import transformer_attention, transformer_ffn

ENGINES: list[Callable[..., Engine]] = [OnnxRuntimeEngine, OpenVinoEngine]
BUILDS = {"attention": transformer_attention(32, 4), "ffn": transformer_ffn(32)}
# Outputs are of layer norms, so their size is about 1. Rounding to 8 bits errs by up to 1/255 of the range of
# each factor; the products of this test are off by 0.01 to 0.03, and float32 by 2e-6.
FLOAT_TOLERANCE, INT8_TOLERANCE = 1e-5, 0.08


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def inputs(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randn(batch, length, 32)


def largest_difference(engine: Engine, module: torch.nn.Module, *example: torch.Tensor) -> float:
    expected = EagerEngine().prepare(module, example)(*example)
    actual = engine.prepare(module, example)(*example)
    assert isinstance(actual, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    return float((actual - expected).abs().max())


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize(("kind", "size"), [("attention", 4), ("attention", 1), ("ffn", 96), ("ffn", 7)])
def test_engines_compute_what_eager_computes(make: Callable[..., Engine], kind: str, size: int) -> None:
    module = BUILDS[kind](size)
    assert largest_difference(make(), module, inputs()) < FLOAT_TOLERANCE
    int8 = largest_difference(make(quantize="int8"), module, inputs())
    assert FLOAT_TOLERANCE < int8 < INT8_TOLERANCE  # the lower bound: it really is quantised


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_removed_branches_are_exported(make: Callable[..., Engine], quantize: str | None) -> None:
    module = BUILDS["ffn"](0)
    module.get_parameter("bias").data.normal_()
    assert largest_difference(make(quantize=quantize), module, inputs()) < FLOAT_TOLERANCE


@pytest.mark.parametrize("make", ENGINES)
def test_control_other_weights_differ_by_more_than_the_tolerance(make: Callable[..., Engine]) -> None:
    x = inputs()
    prepared = make(quantize="int8").prepare(BUILDS["ffn"](96), (x,))
    other = BUILDS["ffn"](96)(x)
    assert (prepared(x) - other).abs().max() > 2 * INT8_TOLERANCE  # type: ignore[operator]


class Several(torch.nn.Module):
    """Takes a mask, None and a number beside its tensor, and returns nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, unused: torch.Tensor, scale: float = 1.0
    ) -> dict[str, object]:
        if mask is not None:
            x = x * mask[..., None]
        return {"logits": self.dropout(self.linear(x)) * scale, "others": (x.sum(-1), None)}


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("masked", [True, False])
def test_arguments_of_all_kinds_and_nested_outputs(make: Callable[..., Engine], masked: bool) -> None:
    module = Several()  # in training mode: engines switch dropout off
    x, mask = torch.randn(2, 3, 8), torch.tensor([[1, 1, 0], [1, 0, 0]]) if masked else None
    arguments = (x, mask, torch.ones(2, dtype=torch.int64), 2.0)
    logits, total = make().prepare(module, arguments)(*arguments)  # type: ignore[misc]
    expected = EagerEngine().prepare(module, arguments)(*arguments)
    torch.testing.assert_close(logits, expected["logits"])  # type: ignore[index]
    torch.testing.assert_close(total, expected["others"][0])  # type: ignore[index]
    assert not torch.allclose(logits, expected["logits"] / 2)  # type: ignore[index]


@pytest.mark.parametrize("make", ENGINES)
def test_functions_are_prepared_too(make: Callable[..., Engine]) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(make().prepare(lambda value: value.relu() + 1, (x,))(x), x.relu() + 1)


def files(folder: Path, x: torch.Tensor) -> dict[str, LoadedModel]:
    """Export one module to files of all kinds, and load each of them; `x` is among the samples."""
    onnx = export_onnx(BUILDS["ffn"](64), {"x": x}, folder / "model.onnx", output_names=["y"])
    xml = convert_openvino(onnx, folder / "model.xml")
    samples = [{"x": x}, [inputs()]]
    return {
        "onnx": load_onnx(onnx, threads=1),
        "dynamic": load_onnx(quantize_onnx(onnx, folder / "dynamic.onnx"), threads=1),
        "static": load_onnx(quantize_onnx_static(onnx, folder / "static.onnx", samples), threads=1),
        "openvino": load_openvino(xml, threads=1),
        "onnx in openvino": load_openvino(onnx, threads=1),
        "nncf": load_openvino(quantize_openvino(xml, folder / "int8.xml", samples), threads=1),
        "nncf of onnx": load_openvino(quantize_openvino(onnx, folder / "int8b.xml", samples), threads=1),
    }


def test_a_sample_without_all_inputs_is_refused(tmp_path: Path) -> None:
    """OpenVINO would take what is in memory, and the scales of int8 would be anything."""
    x = inputs()
    onnx = export_onnx(lambda a, b: a + b, {"a": x, "b": x}, tmp_path / "model.onnx")
    with pytest.raises(OptionError, match="a sample has no input b; give all inputs of the model"):
        quantize_openvino(onnx, tmp_path / "int8.xml", [{"a": x, "b": x}, {"a": x}])
    with pytest.raises(OptionError, match="a sample has 1 inputs; give all 2 of the model"):
        quantize_openvino(onnx, tmp_path / "int8.xml", [[x]])


def test_files_are_called_by_position_and_by_name(tmp_path: Path) -> None:
    x = inputs()
    models = files(tmp_path, x)
    expected = models["onnx"](x)[0]
    for name, model in models.items():
        assert (model.inputs, model.outputs, model.threads) == (("x",), ("y",), 1), name
        assert model.input_shapes == {"x": tuple(x.shape)}, name
        first = model(x.numpy())[0]
        tolerance = FLOAT_TOLERANCE if name in ("onnx", "openvino", "onnx in openvino") else INT8_TOLERANCE
        assert np.abs(first - expected).max() < tolerance, name
        kept = first.copy()
        np.testing.assert_array_equal(model.run({"x": x})["y"], kept)
        model(x + 1)
        np.testing.assert_array_equal(first, kept)  # outputs are the caller's own
        with pytest.raises(OptionError, match="the model has 1 inputs, and 2 were given; give x"):
            model(x, x)
        with pytest.raises(OptionError, match="the model has no input 'z'; its inputs are x"):
            model.run({"z": x})
    assert {path.name for path in tmp_path.iterdir()} == {
        *("model.onnx", "dynamic.onnx", "static.onnx", "model.xml", "model.bin"),
        *("int8.xml", "int8.bin", "int8b.xml", "int8b.bin"),
    }
    assert (tmp_path / "model.bin").stat().st_size > 4 * 2 * 32 * 64  # not compressed to fp16


def test_every_kind_of_matrix_product_is_quantised(tmp_path: Path) -> None:
    """Gemm (2-D inputs) as well as MatMul; the product of two activations stays as it is."""
    import onnx

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = self.second(self.first(x[:, 0]))
            return self.second(self.first(x)) @ flat[:, :, None]

    x = torch.randn(2, 4, 16)
    source = export_onnx(Module(), x, tmp_path / "model.onnx")
    for name, path in {
        "dynamic": quantize_onnx(source, tmp_path / "dynamic.onnx"),
        "static": quantize_onnx_static(source, tmp_path / "static.onnx", [[x]]),
    }.items():
        model = onnx.load(path)
        weights = {value.name: value for value in model.graph.initializer}
        large = [value for value in weights.values() if np.prod(value.dims) >= 16 * 24]
        assert large
        assert {value.data_type for value in large} == {onnx.TensorProto.INT8}, name
        kinds = [node.op_type for node in model.graph.node]
        products = kinds.count("MatMulInteger") if name == "dynamic" else kinds.count("MatMul")
        assert products == (4 if name == "dynamic" else 5) - kinds.count("Gemm"), name
        if name == "dynamic":
            assert kinds.count("MatMul") == 1


def test_operators_are_parsed_once_for_all_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of other sizes take a third of the time; torch itself is left as it was."""
    from latency_profiler import _torchlib
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    original = vars(ONNXRegistry)["from_torchlib"]
    parsed = []
    from_torchlib = ONNXRegistry.from_torchlib

    def counted(*args: object, **kwargs: object) -> object:
        parsed.append(kwargs)
        return from_torchlib(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ONNXRegistry, "from_torchlib", counted)
    monkeypatch.setattr(_torchlib, "_built", {})
    for size in (3, 2, 1):
        module, x = torch.nn.Linear(4, size), torch.randn(2, 4)
        path = export_onnx(module, x, tmp_path / "model.onnx")
        torch.testing.assert_close(torch.tensor(load_onnx(path, threads=1)(x)[0]), module(x))
    assert len(parsed) == 1
    monkeypatch.undo()
    assert vars(ONNXRegistry)["from_torchlib"] is original


def test_weights_in_a_second_file_count_towards_the_size_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit between both, a large model is quantised to two files again, and a small one to one."""
    import onnx

    x = inputs()
    whole = export_onnx(BUILDS["ffn"](64), {"x": x}, tmp_path / "whole.onnx")
    divided = tmp_path / "divided" / "model.onnx"
    divided.parent.mkdir()
    onnx.save(onnx.load(whole), divided, save_as_external_data=True, location="weights", size_threshold=0)
    quantised = {}
    for limit in (whole.stat().st_size // 2, 2 * whole.stat().st_size):
        monkeypatch.setattr("latency_profiler._onnx.LARGEST_SINGLE_FILE", limit)
        folder = tmp_path / str(limit)
        folder.mkdir()
        made = quantize_onnx(divided, folder / "int8.onnx")
        quantised[limit] = load_onnx(made, threads=1)(x)[0]
        assert len(list(folder.iterdir())) == (2 if limit < whole.stat().st_size else 1)
    first, second = quantised.values()
    np.testing.assert_array_equal(first, second)

"""Runs in ONNX Runtime and OpenVINO: targets and metrics are those of the exported files that are saved."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import ziplm
from latency_profiler import LatencyTable
from ziplm import UsageError
from ziplm.architectures.exported import load_exported
from ziplm.options.setting import Setting
from ziplm.options.targets import Target
from ziplm.pipelines.alternatives import dropped_layers
from ziplm.results.run_data import read_run
from ziplm.results.table import engine_lines
from ziplm.stages.profile import QUANTIZED_SPEEDUP
from ziplm_choices import RIGHT, choices_with
from ziplm_compressed import options_for, write_files

INT8 = {"engine": "onnxruntime", "quantize": "int8"}
# Few sizes are exported and measured, and for a moment only.
QUICK = {
    "latency_table": None,
    "clock": "cpu",
    "profile_seconds": 0.2,
    "measure_seconds": 0.2,
    "round_to": 12,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return models, data, and a table in which int8 alone makes the dense model twice as fast."""
    folder = write_files(tmp_path_factory.mktemp("files"))
    table = LatencyTable.load(folder / "latency.json")
    environment = replace(table.environment, details={QUANTIZED_SPEEDUP: 2.0})
    LatencyTable(environment, table.fixed, table.curves).save(folder / "int8.json")
    return folder


def compress(files: Path, output: Path, **more: Any) -> ziplm.Family:
    options = options_for(files, "bert", output, **more)
    return ziplm.compress(options.pop("model"), options.pop("task"), **options)


def test_a_target_that_int8_alone_meets_is_not_pruned_and_others_are_pruned_less(
    files: Path, tmp_path: Path
) -> None:
    table = str(files / "int8.json")
    family = compress(files, tmp_path / "run", speedup=[1.5, 3.0], latency_table=table, **INT8)
    alone, pruned = family
    dense = {part: [size] * 3 for part, size in alone.metrics["dense_sizes"].items()}
    assert alone.sizes == dense != pruned.sizes
    assert alone.metrics["search"]["evaluations"] <= len(alone.metrics["search"]["prior_losses"])
    # int8 brings 2x of the 3x, so that the table's time may be two thirds of the unpruned one.
    choices = LatencyTable.load(table)
    unpruned = choices.predict(dense)
    assert choices.predict(pruned.sizes) <= unpruned * 2 / 3
    assert choices.predict(pruned.sizes) > unpruned / 3  # the control: without int8, it would have to be this
    assert pruned.metrics["predicted"]["speedup"] >= 3.0
    assert pruned.metrics["quantization"]["dense_speedup"] == 2.0


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_metric_is_that_of_the_saved_file(files: Path, tmp_path: Path, quantize: str | None) -> None:
    (member,) = compress(files, tmp_path / "run", speedup=2.0, engine="onnxruntime", quantize=quantize)
    name = "model.onnx" if quantize is None else "model_qint8.onnx"
    assert member.metrics["exported"]["files"] == [f"onnx/{name}"]
    file = member.folder / "onnx" / name
    assert member.metrics["exported"]["bytes"] == file.stat().st_size
    found = ziplm.evaluate(
        str(file), "classification", validation_file=str(files / "valid.csv"), max_length=16
    )
    assert found["validation"]["accuracy"] == member.metrics["metric"]["compressed"]
    model, exported = ziplm.load(member.folder), load_exported(file)
    ids = torch.tensor([[2, 5, 6, 7, 8, 3]])
    difference = np.abs((model(ids).logits - exported(ids).logits).detach().numpy()).max()
    assert (difference < 1e-4) == (quantize is None)
    assert not list((tmp_path / "run").rglob("exported"))  # the file is in one place only


def test_dense_and_compressed_models_are_measured_in_the_engine_beside_eager_torch(
    files: Path, tmp_path: Path
) -> None:
    (member,) = compress(files, tmp_path / "run", speedup=1.2, alternatives=True, **QUICK, **INT8)
    measured, environment = member.metrics["measured"], member.metrics["environment"]
    assert measured["over_eager"] > 0
    assert (environment["engine"], environment["quantization"]) == ("onnxruntime", "int8")
    assert member.metrics["quantization"]["dense_speedup"] == environment["details"][QUANTIZED_SPEEDUP]
    lines = engine_lines(ziplm.Family((member,)))
    over_eager = (
        r"engine onnxruntime, 1 thread; speedup over the dense model in eager torch: [\d.]+x for 1\.2x"
    )
    assert re.match(over_eager, lines[0])
    assert re.match(r"metric before int8: [\d.]+ for 1\.2x", lines[1])
    names = [row["name"] for row in read_run(tmp_path / "run").alternatives]
    assert {"dense + int8", "every 2nd layer + int8", "1.2x without int8"} <= set(names)
    for row in read_run(tmp_path / "run").alternatives:
        assert row["low"] <= row["speedup"] <= row["high"]
        assert row["interval"][0] <= row["metric"] <= row["interval"][1]


def test_generation_is_measured_in_onnx_runtime(files: Path, tmp_path: Path) -> None:
    options = options_for(
        files,
        "gpt2",
        tmp_path / "run",
        sparsity=0.3,  # most of the time of so small a model is spent elsewhere
        regime="generate",
        prompt_length=4,
        new_tokens=4,
        max_length=16,
        engine="onnxruntime",
        **QUICK,
    )
    del options["input_length"]
    (member,) = ziplm.compress(options.pop("model"), options.pop("task"), **options)
    assert member.metrics["measured"]["over_eager"] > 0
    assert (member.folder / "onnx/model.onnx").is_file()


def test_openvino_runs_int8(files: Path, tmp_path: Path) -> None:
    (member,) = compress(files, tmp_path / "run", speedup=2.0, engine="openvino", quantize="int8")
    assert member.metrics["exported"]["files"][0].startswith("openvino/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int8"}, "engine eager does not run quantised models"),
        ({"engine": "openvino", "regime": "generate"}, "generation is not measured with engine openvino"),
        ({"engine": "onnxruntime", "dtype": "bfloat16"}, "exported in float32, on the CPU"),
        ({"engine": "onnxruntime", "device": "cuda"}, "exported in float32, on the CPU"),
    ],
)
def test_settings_that_no_engine_has_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Setting(**options)


def test_as_many_layers_are_dropped_as_a_speedup_takes() -> None:
    choices = choices_with(prior=RIGHT)
    kept = dropped_layers(choices, [Target("speedup", 1.3), Target("speedup", 2.0), Target("latency", 5.0)])
    assert kept["every 2nd layer"] == [0, 2]
    assert kept["first 1 layer"] == [0]
    assert kept["1 layer, spread"] == [2]
    layer = (choices.unpruned_seconds - choices.table.fixed) / 3
    for name, layers in kept.items():
        if name.startswith("first"):
            fits = choices.table.fixed + len(layers) * layer <= choices.dense_seconds / 1.3
            assert fits

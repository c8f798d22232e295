"""Engines: their threads, what is recorded of them, and what they refuse."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from latency_profiler import (
    Engine,
    EngineError,
    Environment,
    Family,
    MissingExtra,
    OnnxRuntimeEngine,
    OpenVinoEngine,
    OptionError,
    compare,
    convert_openvino,
    export_onnx,
    load_onnx,
    load_openvino,
    measure,
    profile_families,
    quantize_onnx,
    quantize_onnx_static,
    resolve_engine,
)
from latency_profiler.blocks import transformer_attention, transformer_ffn

ENGINES: list[Callable[..., Engine]] = [OnnxRuntimeEngine, OpenVinoEngine]
BUILDS = {"attention": transformer_attention(32, 4), "ffn": transformer_ffn(32)}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def inputs(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randn(batch, length, 32)


def test_one_thread_is_the_calling_thread() -> None:
    """So that CPU time is that of the work; both clocks are compared over the same calls."""
    x = torch.randn(8, 64, 256)
    module = transformer_ffn(256)(1024)
    for engine in (OnnxRuntimeEngine(threads=1), OpenVinoEngine(threads=1)):
        call = engine.prepare(module, (x,))
        call(x)
        process, thread = time.process_time(), time.thread_time()
        for _ in range(20):
            call(x)
        process, thread = time.process_time() - process, time.thread_time() - thread
        assert thread > 0.9 * process, engine.name


def test_idle_threads_do_not_spin() -> None:
    x = torch.randn(4, 64, 128)
    for engine in (OnnxRuntimeEngine(threads=2), OpenVinoEngine(threads=2)):
        call = engine.prepare(transformer_ffn(128)(256), (x,))
        call(x)
        time.sleep(0.05)
        start = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - start < 0.1, engine.name


def test_threads_of_a_comparison_are_the_same() -> None:
    x = inputs()
    module = BUILDS["ffn"](16).eval()
    one, two = (OnnxRuntimeEngine(threads=threads).prepare(module, (x,)) for threads in (1, 2))
    result = compare({"eager": module, "onnxruntime": one}, x, threads=1, max_seconds=0.05)
    assert result.ratio("onnxruntime").value > 0
    with pytest.raises(OptionError, match="two was loaded with 2 threads, and the measurement uses 1"):
        compare({"eager": module, "two": two}, x, threads=1)
    with pytest.raises(OptionError, match="the callable was loaded with 2 threads"):
        measure(two, x, threads=1)
    with pytest.raises(OptionError, match="the engine has 2 threads, and the measurement 1"):
        profile_families(
            {"ffn": Family(BUILDS["ffn"], [4], x)}, engine=OnnxRuntimeEngine(threads=2), threads=1
        )
    for bad in (0, -1, 100_000, 2.0):
        with pytest.raises(OptionError, match=r"threads is .*; use an integer from 1 to \d+"):
            OnnxRuntimeEngine(threads=bad)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="threads is "):
            compare({"eager": module, "one": one}, x, threads=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_profiles_are_measured_in_the_engine_with_the_threads_of_the_measurement(name: str) -> None:
    seen = []

    class Spy:
        def __init__(self, engine: Engine) -> None:
            self.name, self.versions, self._engine = engine.name, engine.versions, engine

        def prepare(
            self, module: Callable[..., object], example: tuple[object, ...]
        ) -> Callable[..., object]:
            call = self._engine.prepare(module, example)
            seen.append(call.threads)  # type: ignore[attr-defined]
            return call

    engine = Spy(resolve_engine(name, "int8"))  # type: ignore[arg-type]
    before = torch.get_num_threads()
    curves = profile_families(
        {"ffn": Family(BUILDS["ffn"], [64, 0], inputs())}, engine=engine, threads=2, max_seconds=0.05
    )
    assert curves["ffn"].seconds[0] > 0
    assert seen == [2, 2]
    assert torch.get_num_threads() == before


def test_environment_records_engine_quantisation_threads_and_versions() -> None:
    engine = OnnxRuntimeEngine(quantize="int8", threads=2)
    environment = Environment.current(engine=engine)
    assert (environment.engine, environment.quantization, environment.threads) == ("onnxruntime", "int8", 2)
    assert set(environment.versions) == {"python", "torch", "onnx", "onnxruntime"}
    assert ", 2 threads, float32, onnxruntime int8, wall clock, " in str(environment)
    assert Environment.from_dict(environment.to_dict()) == environment
    plain = Environment.current(engine="onnxruntime", threads=2)
    assert [difference.what for difference in plain.differences(environment)] == ["quantization"]
    old = {name: value for name, value in plain.to_dict().items() if name != "quantization"}
    assert Environment.from_dict(old) == plain  # a table of version 0.1
    versions = Environment.current(engine=OpenVinoEngine("int8")).versions
    assert set(versions) == {"python", "torch", "openvino", "nncf"}


def test_what_cannot_be_exported_is_an_engine_error(tmp_path: Path) -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x  # depends on values

    with pytest.raises(EngineError, match=r"torch.onnx.export failed: ") as caught:
        export_onnx(counts, torch.ones(3), tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 500
    (tmp_path / "damaged.onnx").write_bytes(b"\x00\xff" * 50)
    (tmp_path / "damaged.xml").write_text("<net")
    for path in ("damaged.onnx", "missing.onnx"):
        for call in (load_onnx, load_openvino):
            with pytest.raises(EngineError):
                call(tmp_path / path)
        with pytest.raises(EngineError, match="cannot read"):
            quantize_onnx(tmp_path / path, tmp_path / "out.onnx")
    with pytest.raises(EngineError, match="OpenVINO cannot read"):
        load_openvino(tmp_path / "damaged.xml")
    with pytest.raises(EngineError, match="needs inputs with at least one tensor"):
        OnnxRuntimeEngine().prepare(torch.nn.Identity(), (3,))
    with pytest.raises(EngineError, match="does not run bfloat16 here; use float32"):
        OpenVinoEngine().prepare(torch.nn.Identity(), (torch.ones(3, dtype=torch.bfloat16),))
    with pytest.raises(OptionError, match=r"does not end in \.xml"):
        convert_openvino(torch.nn.Identity(), tmp_path / "model.bin", torch.ones(3))
    good = export_onnx(torch.nn.Linear(3, 3), torch.ones(2, 3), tmp_path / "good.onnx")
    with pytest.raises(OptionError, match="there are no samples"):
        quantize_onnx_static(good, tmp_path / "out.onnx", [])
    assert {path.name for path in tmp_path.iterdir()} == {"damaged.onnx", "damaged.xml", "good.onnx"}


@pytest.mark.parametrize(
    ("engine", "hidden"),
    [("onnxruntime", "onnxscript"), ("onnxruntime", "onnxruntime"), ("openvino", "nncf")],
)
def test_missing_packages_are_named_with_the_pip_command(
    engine: str, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latency_profiler import _extras

    found = _extras.find_spec
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == hidden else found(name))
    with pytest.raises(MissingExtra) as caught:
        resolve_engine(engine)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"the engine {engine} needs {hidden}; run: pip install 'latency-profiler[{engine}]'"
    )
    assert caught.value.exit_code == 7


def test_only_exporting_engines_quantise() -> None:
    with pytest.raises(OptionError, match="the engine eager does not quantise; use onnxruntime or openvino"):
        resolve_engine("eager", "int8")
    with pytest.raises(OptionError, match="quantize is 'int4'; use 'int8' or None"):
        OnnxRuntimeEngine(quantize="int4")


QUIET = """
import logging, os, torch, warnings
warnings.simplefilter("error")
from latency_profiler import OnnxRuntimeEngine, OpenVinoEngine
x = torch.randn(2, 3, 8)
for make in (OnnxRuntimeEngine, OpenVinoEngine):
    make(quantize="int8", threads=1).prepare(torch.nn.Linear(8, 8), (x,))(x)
assert logging.root.handlers == [] and logging.root.manager.disable == 0
assert "CI" not in os.environ
"""


def test_engines_print_nothing_and_leave_no_traces(tmp_path: Path) -> None:
    """No progress bars, no advice, no client id of OpenVINO's usage reports, no changed logging."""
    home = {"HOME": str(tmp_path), "CI": ""}
    environment = {**os.environ, **home}
    del environment["CI"]
    done = subprocess.run(
        [sys.executable, "-c", QUIET],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if not line.startswith("This CPU announces ")]
    assert (done.returncode, done.stdout, told) == (0, "", [])  # the exception: the warning of the probe
    assert list(tmp_path.iterdir()) == []

"""The command line with engines that export modules, and with int8."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from latency_profiler import LatencyTable, _cpu, _extras
from latency_profiler.cli import main

QUICK = ["--max-seconds", "0.05", "--min-rounds", "5", "--threads", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a temporary working folder."""
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_blocks_are_profiled_in_an_exporting_engine_with_int8() -> None:
    small = ("--hidden", "24", "--sizes", "32,0", "--batch", "1", "--sequence", "4")
    arguments = ["run", "transformer_ffn", *small]
    for engine in ("onnxruntime", "openvino"):
        result = run(*arguments, "--engine", engine, "--quantize", "int8", "-o", f"{engine}.json", *QUICK)
        assert result.exit_code == 0, result.output
        assert f"1 thread, float32, {engine} int8, " in result.stdout
        environment = LatencyTable.load(f"{engine}.json").environment
        assert (environment.engine, environment.quantization, environment.threads) == (engine, "int8", 1)
        assert engine in environment.versions
    result = run(*arguments, "--quantize", "int8")
    assert result.exit_code == 2
    assert result.stderr == "Error: the engine eager does not quantise; use onnxruntime or openvino\n"


def test_int8_on_a_cpu_without_its_instructions_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("run", "transformer_ffn", "--hidden", "24", "--sizes", "8,0", "--engine", "onnxruntime")
    for flags, told in ((frozenset({"avx2"}), True), (frozenset({"avx_vnni"}), False)):
        monkeypatch.setattr(_cpu, "cpu_flags", lambda flags=flags: flags)
        result = run(*arguments, "--batch", "1", "--sequence", "4", "--quantize", "int8", *QUICK)
        assert result.exit_code == 0, result.output
        assert ("can be slower than float32; smaller modules need no such" in result.stdout) is told


def test_missing_engine_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None)
    result = run("run", "transformer_ffn", "--engine", "openvino", *QUICK)
    assert result.exit_code == 7
    assert result.stderr == (
        "Error: the engine openvino needs openvino and nncf; run: pip install 'latency-profiler[openvino]'\n"
    )

"""Tables are read, and help pages shown, without importing torch or scipy."""

import ast
import subprocess
import sys
from pathlib import Path

import latency_profiler
import pytest
from latency_profiler import Environment, LatencyCurve, LatencyTable, Timing

TIMING = Timing(1.0, 0.9, 1.1, 0.8, 1.2, 3.0, 0.1, 60, 1, "rel_error")
READ = """
import latency_profiler
from latency_profiler import (
    Difference, Environment, EnvironmentMismatch, LatencyCurve, LatencyTable, ProfilerError, SizeError,
    TableError, Timing
)

table = LatencyTable.load("table.json")
assert table.predict({"ffn": [64, 16]}) == 0.5 + 1.0 + 0.625
assert table.speedup({"ffn": [64, 16]}) == 2.5 / 2.125
assert str(table) and str(table.environment) and str(table.curves["ffn"].timings[0])
assert table.environment.differences(table.environment) == []
table.save("again.json")
assert LatencyTable.load("again.json", table.environment) == table
try:
    LatencyTable.load("none.json")
except ProfilerError as error:
    assert isinstance(error, TableError)
"""
COMMAND = "from latency_profiler.cli import main; main({}, standalone_mode=False)"
LOADED = "\nimport sys; print([name for name in ('torch', 'scipy', 'matplotlib') if name in sys.modules])"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table."""
    curves = {"ffn": LatencyCurve((64, 0), (1.0, 0.5), (TIMING, TIMING))}
    LatencyTable(Environment.current(), 0.5, curves).save(tmp_path / "table.json")
    return tmp_path


def loaded_by(program: str, folder: Path) -> str:
    """Run a program in a new process; return its last line, the slow modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", program + LOADED], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_tables_are_read_without_torch(folder: Path) -> None:
    assert loaded_by(READ, folder) == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["show", "table.json"],
        ["diff", "table.json", "table.json"],
        ["plot", "--help"],
    ],
    ids=" ".join,
)
def test_commands_that_measure_nothing_run_without_torch(arguments: list[str], folder: Path) -> None:
    assert loaded_by(COMMAND.format(arguments), folder) == "[]"


def test_package_alone_imports_none_of_its_modules(folder: Path) -> None:
    program = "import latency_profiler, sys; assert not any('latency_profiler.' in m for m in sys.modules)"
    assert loaded_by(program, folder) == "[]"


def test_every_public_name_is_found_and_listed() -> None:
    for name in latency_profiler.__all__:
        assert getattr(latency_profiler, name).__name__ == name
    assert {*latency_profiler.__all__, "__version__"} <= {*dir(latency_profiler)}
    with pytest.raises(AttributeError, match="module 'latency_profiler' has no attribute 'mesure'"):
        _ = latency_profiler.mesure  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(Path(latency_profiler.__file__).read_text())
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(latency_profiler.__all__)
    for name, module in seen.items():
        assert getattr(latency_profiler, name).__module__ == module


def test_dtypes_are_given_as_such_or_by_name() -> None:
    import torch

    assert Environment.current().dtype == "float32"
    assert Environment.current(dtype="bfloat16").dtype == Environment.current(dtype=torch.bfloat16).dtype
    with pytest.raises(latency_profiler.OptionError, match="unknown dtype 'float23'; use a torch dtype"):
        Environment.current(dtype="float23")

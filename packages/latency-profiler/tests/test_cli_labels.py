"""How the command line describes the inputs of a module, and what it says about a busy machine."""

import dataclasses
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from latency_profiler import Environment, LatencyCurve, LatencyTable, Timing
from latency_profiler.cli import main

FACTORIES = """
import torch

def convolution(channels):
    return torch.nn.Conv2d(3, channels, 3) if channels else torch.nn.Identity()

def linear(width):
    return torch.nn.Linear(8, width) if width else torch.nn.Identity()
"""
QUICK = ["--max-seconds", "0.05", "--min-rounds", "5", "--threads", "1"]
QUIET = Timing(1e-3, 0.99e-3, 1.01e-3, 0.98e-3, 1.1e-3, 3e-3, 0.05, 60, 1, "max_seconds")
BUSY = dataclasses.replace(QUIET, spread=15.58)  # "spread 1558 %" would tell a reader nothing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a temporary working folder that contains a module of factories."""
    (tmp_path / "latency_profiler_images.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "latency_profiler_images", raising=False)
    return tmp_path


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("factory", "shape", "sequence"),
    [("convolution", "2x3x8x8", None), ("linear", "2x8", None), ("linear", "2x5x8", 5)],
)
def test_only_the_second_of_three_dimensions_is_a_sequence(
    factory: str, shape: str, sequence: int | None
) -> None:
    target = f"latency_profiler_images:{factory}"
    text = output_of("run", target, "--sizes", "4,0", "--shape", shape, "-o", "out.json", *QUICK)
    environment = LatencyTable.load("out.json").environment
    assert (environment.batch_size, environment.sequence_length) == (2, sequence)
    assert environment.details == {"inputs": shape}
    assert f"inputs {shape}" in text
    assert "batch 2" in text
    assert ("sequence" in text) == (sequence is not None)


def save(name: str, *timings: Timing, clock: str = "wall") -> None:
    curve = LatencyCurve(tuple(range(len(timings) - 1, -1, -1)), (1e-3,) * len(timings), timings)
    environment = dataclasses.replace(Environment.current(batch_size=8, threads=1), clock=clock)
    LatencyTable(environment, 0.0, {"ffn": curve}).save(name)


def test_a_busy_machine_is_explained_below_the_table() -> None:
    save("busy.json", QUIET, BUSY, QUIET)
    text = output_of("show", "busy.json")
    assert "spread" not in text
    assert "18.1x" in text  # (0.98 + 15.58 x 1.1) / 1
    note = text.splitlines()[-1]
    assert note.startswith(
        "ffn: the machine was busy, and the time limit was reached before the requested precision."
    )
    assert "At 1 of 3 sizes, a quarter of the runs took at least 2x the time shown" in note
    assert "(at worst 18.1x, at size 1)" in note
    assert note.endswith("on an idle machine, or with --clock cpu --threads 1.")


def test_the_note_names_the_table_if_there_are_several() -> None:
    save("busy.json", BUSY, BUSY, clock="cpu")
    save("quiet.json", QUIET, QUIET)
    notes = [line for line in output_of("show", "busy.json", "quiet.json").splitlines() if "machine" in line]
    assert len(notes) == 1
    assert notes[0].startswith("busy, ffn: the machine was busy")
    assert notes[0].endswith("on an idle machine.")


def test_no_note_if_the_machine_was_quiet_or_the_times_are_precise() -> None:
    save("quiet.json", QUIET, QUIET)
    assert "machine" not in output_of("show", "quiet.json")
    save("precise.json", dataclasses.replace(BUSY, stopped="rel_error"), QUIET)
    text = output_of("show", "precise.json")
    assert "18.1x" in text
    assert "machine" not in text

"""The table of alternatives: what it lists, in which order, and when it is printed."""

from io import StringIO
from pathlib import Path

from rich.console import Console
from ziplm.results.alternatives_table import compared_models, print_alternatives
from ziplm.results.run_data import read_run
from ziplm_reports import ALTERNATIVES, write_run


def printed(folder: Path) -> str:
    """Return what a terminal of 80 columns shows."""
    console = Console(file=StringIO(), width=80, color_system=None)
    print_alternatives(folder, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_members_and_alternatives_are_sorted_by_speed(tmp_path: Path) -> None:
    unfinished = {"name": "unfinished", "metric": None, "speedup": 1.2}
    folder = write_run(tmp_path / "run", (2, 4), alternatives=[*ALTERNATIVES, unfinished])
    rows = compared_models(read_run(folder))
    assert [row.name for row in rows] == ["dense", "6 of 12 layers", "2x", "dense + int8", "4x"]
    speeds = [row.speedup[0] for row in rows]
    assert speeds == sorted(speeds)
    assert speeds[0] == 1


def test_differences_refer_to_the_dense_model(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", (2,), alternatives=ALTERNATIVES))
    dense = run.reports[0]["metric"]["dense"]
    assert {row.name: row.difference for row in compared_models(run)}["dense + int8"] == 0.9197 - dense


def test_a_difference_is_marked_only_if_its_interval_contains_0(tmp_path: Path) -> None:
    found = [
        {"name": name, "metric": 0.9, "speedup": 2.0, "difference_interval": interval}
        for name, interval in (("clear", [-0.05, -0.01]), ("chance", [-0.05, 0.01]))
    ]
    rows = compared_models(read_run(write_run(tmp_path / "run", (2,), alternatives=found)))
    assert {row.name: row.alike for row in rows if row.name in ("clear", "chance")} == {
        "clear": False,
        "chance": True,
    }


def test_a_quantised_member_says_so_and_counts_its_exported_file(tmp_path: Path) -> None:
    changes = {"quantization": {"dense_speedup": 2.2}, "exported": {"files": [], "bytes": 123}}
    run = read_run(write_run(tmp_path / "run", (4,), alternatives=ALTERNATIVES, **changes))
    assert {row.name: row.disk for row in compared_models(run)}["4x + int8"] == 123


def test_the_table_fits_80_columns_and_says_what_int8_alone_meets(tmp_path: Path) -> None:
    sentence = "int8 alone is 2.20x as fast, which meets 2x without pruning."
    found = [
        {**ALTERNATIVES[0], "sentence": sentence},
        {**ALTERNATIVES[1], "name": "4 layers, spread + int8"},
    ]
    text = printed(write_run(tmp_path / "run", (2, 4), alternatives=found))
    assert sentence in text
    assert "4 layers, spread + int8" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_without_alternatives_prints_nothing(tmp_path: Path) -> None:
    assert printed(write_run(tmp_path / "run", (2,))) == ""

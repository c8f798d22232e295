"""The table of `ziplm benchmark` fits 80 columns with every name and number whole."""

import io
from typing import Any

import pytest
from rich.console import Console
from ziplm.cli.benchmark import _digits, _print_table

LONG = "/home/someone/experiments/2026/november/reviews-of-products/runs/minilm-latency-three-times"


def row(model: str, engine: str = "onnxruntime", **more: Any) -> dict[str, Any]:
    figures = {"ms": 1148.21, "speedup": 10.01, "low": 9.71, "high": 10.32, "parameters": 109_482_240}
    return {"model": model, "engine": engine, **figures, "bytes": 438e6, **more}


def printed(rows: list[dict[str, Any]], width: int = 80) -> list[str]:
    file = io.StringIO()
    _print_table(rows, Console(file=file, width=width, highlight=False))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("generates", [False, True])
@pytest.mark.parametrize("engine", ["eager", "onnxruntime"])
def test_long_paths_are_shortened_in_the_table_and_whole_below_it(engine: str, generates: bool) -> None:
    more = {"tokens_per_second": 1234.5} if generates else {}
    names = [f"{LONG}/dense", f"{LONG}/2x", f"{LONG}/2x/onnx/model_quantized.onnx"]
    lines = printed([row(name, engine, **more) for name in names])
    table, below = lines[: -len(names)], lines[-len(names) :]
    assert all(len(line) <= 80 for line in table)
    assert [line.split(": ")[1] for line in below] == names  # no name is broken, even if the line is long
    labels = [line.split(": ")[0].strip() for line in below]
    for label, line in zip(labels, table[-len(names) :], strict=True):
        assert [cell.strip() for cell in line.split("│")][:2] == [label, engine]
        for figure in ("1148", "10.01x [9.71, 10.32]", "109.48M", "438"):
            assert figure in line


def test_short_names_are_not_repeated() -> None:
    lines = printed([row("models/dense", "eager"), row("runs/2x", "eager")])
    assert len(lines) == 4  # headings, a rule and two rows
    assert lines[2].startswith("models/dense ")


def test_as_many_parts_of_a_path_are_kept_as_tell_it_apart() -> None:
    lines = printed([row(f"{LONG}/a/2x", "eager"), row(f"{LONG}/b/2x", "eager")])
    assert [line[:4] for line in lines[2:4]] == ["a/2x", "b/2x"]
    assert lines[4:] == [f"  a/2x: {LONG}/a/2x", f"  b/2x: {LONG}/b/2x"]


def test_a_name_that_cannot_be_shortened_gets_a_number() -> None:
    lines = printed([row("x" * 60, "eager"), row("y" * 60, "eager")])
    assert lines[2].startswith("1 ")
    assert lines[4:] == [f"  1: {'x' * 60}", f"  2: {'y' * 60}"]


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12346"), (1234.5, "1234"), (12.3456, "12.35"), (0.51239, "0.5124")]
)
def test_numbers_have_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert _digits(value) == text

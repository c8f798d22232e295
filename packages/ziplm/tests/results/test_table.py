"""The table of a family: values with intervals, the mark of equal models, and its width."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from ziplm.results.family import Family, Member
from ziplm.results.table import metric_texts, print_family, speed_text, value_text

EXPLAINED = "±: 95 % interval; ≈: cannot be told apart from the dense model at 95 %"


def member(target: str = "2x", kind: str = "speedup", **metric: Any) -> Member:
    report = {
        "metric": {"name": "perplexity", "dense": 27.3, "compressed": 28.31, **metric},
        "target": {"kind": kind},
        "measured": {"speedup": 12.01, "low": 11.99, "high": 12.05, "seconds": 0.01234}
        | {"dense_seconds": 0.1482},
        "environment": {"batch_size": 1, "details": {"regime": "latency", "input lengths": "14 27 44"}},
        "parameters": {"layers": 42_530_000},
        "dense_parameters": {"layers": 85_054_464},
        "bytes_on_disk": 438e6,
        "sizes": {"attention": [12, 0], "ffn": [3072, 10]},
    }
    return Member(target, Path("runs") / target, report)


INTERVALS = {"dense_interval": [26.1, 28.7], "interval": [27.0, 29.8], "difference_interval": [-0.2, 2.1]}
APART = {**INTERVALS, "difference_interval": [0.3, 2.1]}


def printed(*members: Member, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    print_family(Family(members), Console(file=file, width=80, highlight=False))
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.827, (0.821, 0.8331), "0.8270 ±0.0061"),
        (0.827, (0.8, 0.83), "0.8270 ±0.0270"),  # the farther end
        (1.0, (0.886, 1.0), "1.000 ±0.114"),
        (-0.05, (-0.2, 0.1), "-0.0500 ±0.1500"),
        (27.312, (26.9, 27.5), "27.31 ±0.41"),
        (1234.5, (1200.0, 1300.0), "1234 ±66"),
        (1234567.0, (1e6, 1.3e6), "1.235e+06 ±2.3e+05"),
        (0.827, None, "0.8270"),
        (27.312, None, "27.31"),
    ],
)
def test_a_value_with_its_interval(value: float, interval: tuple[float, float] | None, text: str) -> None:
    assert value_text(value, interval) == text


@pytest.mark.parametrize(
    ("difference", "marked"),
    [((-0.2, 2.1), True), ((0.0, 0.0), True), ((0.0, 1.0), True), ((0.1, 2.0), False), ((-2.0, -0.1), False)],
)
def test_a_difference_that_contains_zero_is_marked(difference: tuple[float, float], marked: bool) -> None:
    texts = metric_texts({"dense": 1.0, "compressed": 2.0, **APART, "difference_interval": list(difference)})
    assert [text.endswith(" ≈") for text in texts] == [False, marked]


def test_intervals_and_the_mark_are_printed_and_explained_in_one_line() -> None:
    text = printed(member(**INTERVALS), member("4x", **APART))
    assert text.count("28.31 ±1.49") + text.count("±1.49 ≈") == 2
    assert text.count("≈") == 2  # one mark, and its explanation
    assert EXPLAINED in text.splitlines()
    assert "compressed" in text


@pytest.mark.parametrize("target", ["2x", "recover0.95"])
@pytest.mark.parametrize("kind", ["speedup", "latency"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_table_fits_80_columns_without_cutting_a_value(target: str, kind: str, encoding: str) -> None:
    values = {"name": "accuracy", "dense": 0.884, "compressed": 0.8802}
    ends = {"dense_interval": [0.8601, 0.9], "interval": [0.858, 0.9], "difference_interval": [-0.1, 0.1]}
    text = printed(member(target, kind, **values, **ends), encoding=encoding)
    table = text[: text.index(": 95 %")].splitlines()
    assert all(len(line) <= 80 for line in table)
    within, alike = ("±", "≈") if encoding == "utf-8" else ("+-", "~")
    becomes = "→" if encoding == "utf-8" else "->"
    assert f"148 {becomes} 12.3 ms" in text
    for word in (target, "12.01x [11.99, 12.05]", "0.8802", f"{within}0.0222 {alike}", "compressed", "(50%)"):
        assert word in text
    assert f"{within}0.0239" in text
    assert f"{alike}: cannot be told apart" in text


def test_a_report_without_intervals_is_printed_as_before() -> None:
    text = printed(member())
    assert "28.31" in text
    assert "27.30" in text
    assert not {"±", "≈"} & set(text)
    # A text of a single window has predictions, but no interval.
    missing = dict.fromkeys(("dense_interval", "interval", "difference_interval"))
    assert printed(member(**missing)) == text


@pytest.mark.parametrize("kind", ["speedup", "latency"])
def test_milliseconds_of_both_models_are_shown_and_explained(kind: str) -> None:
    lines = printed(member("2x", kind)).splitlines()
    first, second = (
        next(n for n, line in enumerate(lines) if t in line) for t in ("148 → 12.3 ms", "12.01x")
    )
    assert (first < second) == (kind == "latency")  # what the target states comes first
    inputs = "batch size 1, input lengths 14, 27, 44, their mean"
    assert f"ms: time of one call, dense → compressed; {inputs}" in lines
    one = member("2x", kind)
    one.metrics["environment"] = {
        "batch_size": 8,
        "sequence_length": 128,
        "details": {"regime": "throughput"},
    }
    assert "ms: time of one call, dense → compressed; batch size 8, 128 tokens" in printed(one).splitlines()


def test_a_report_that_does_not_know_the_dense_time_shows_its_own() -> None:
    old = member()
    del old.metrics["measured"]["dense_seconds"], old.metrics["environment"]
    text = printed(old)
    assert " 12.3 ms" in text
    assert "→" not in text


@pytest.mark.parametrize(("seconds", "text"), [(1.2345, "1234 ms"), (0.1, "100 ms"), (0.00171, "1.71 ms")])
def test_milliseconds_have_three_digits(seconds: float, text: str) -> None:
    report = member().metrics
    report["measured"] |= {"seconds": seconds, "dense_seconds": None}
    assert speed_text(report).endswith(f"\n{text}")


def test_speeds_that_others_may_have_changed_are_named() -> None:
    text = "other processes used up to 75% of the cores: the speed of 2x and 4x may be off by up to 11%, "
    members = [member(target) for target in ("2x", "3x", "4x")]
    assert "other processes" not in printed(*members)
    for one, doubt in ((members[0], 0.05), (members[2], 0.11)):
        one.metrics["measured"] |= {"competition": 0.75, "doubt": doubt}
    assert text + "which is part of the interval" in printed(*members)

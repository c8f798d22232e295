"""Nothing in a file or on the command line ends in anything but a result or one line of our own."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from latency_profiler import (
    Environment,
    LatencyCurve,
    LatencyTable,
    OptionError,
    OutputFileError,
    SizeError,
    TableError,
    Timing,
    UnreadableTable,
    geometric_sizes,
    parse_sizes,
)
from latency_profiler._errors import shortened
from latency_profiler._files import PARTIAL, atomic_files, atomic_write
from latency_profiler.cli import main

TIMING = Timing(1.0, 0.9, 1.1, 0.8, 1.2, 3.0, 0.1, 60, 1, "rel_error")
DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 400


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "latency.json"
    curves = {"ffn": LatencyCurve((64, 0), (1.0, 0.5), (TIMING, TIMING))}
    LatencyTable(Environment.current(batch_size=2), 0.5, curves).save(path)
    return path


def shown(path: Path | str) -> str:
    """Return the message of `show` for a damaged file, checked to be one line with exit code 2."""
    result = CliRunner().invoke(main, ["show", str(path)])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) <= 510
    result.stderr.encode()  # can be printed
    return result.stderr


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"format": ' + DEEP + "}",
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "9" * 100_000,
        "nul",
        "\x00" * 1000,
        '"\\ud800"',
    ],
    ids=["nested lists", "nested field", "nested objects", "digits", "short", "zeros", "surrogate"],
)
def test_content_that_is_no_table_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "latency.json"
    path.write_text(content)
    with pytest.raises(TableError):
        LatencyTable.load(path)
    shown(path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("fixed",), "NaN"),
        (("fixed",), "Infinity"),
        (("fixed",), "1e999"),
        (("fixed",), DIGITS),
        (("version",), DIGITS),
        (("version",), DEEP),
        (("environment", "threads"), "-1"),
        (("environment", "threads"), "0"),
        (("environment", "threads"), DIGITS),
        (("environment", "threads"), "true"),
        (("environment", "cores"), "0"),
        (("environment", "batch_size"), "-5"),
        (("environment", "load_average"), "NaN"),
        (("environment", "load_average"), "-1"),
        (("environment", "details"), '{"a": NaN}'),
        (("environment", "details"), '{"a": [1]}'),
        (("environment", "device_name"), '"\\udfff"'),
        (("environment", "quantization"), "8"),
        (("environment", "versions"), '{"torch": 2}'),
        (("curves",), '{"\\ud800": {}}'),
        (("curves", "ffn", "sizes"), f"[{DIGITS}, 0]"),
        (("curves", "ffn", "sizes"), "[[64], 0]"),
        (("curves", "ffn", "sizes"), "[64.0, 0]"),
        (("curves", "ffn", "seconds"), "[1e999, 0]"),
        (("curves", "ffn", "seconds"), "[1.0, NaN]"),
        (("curves", "ffn", "seconds"), "[1.0, -0.5]"),
        (("curves", "ffn", "seconds"), '[1.0, "0.5"]'),
        (("curves", "ffn", "seconds"), "[1.0]"),
        (("curves", "ffn", "timings", 0, "seconds"), "NaN"),
        (("curves", "ffn", "timings", 0, "seconds"), "-1"),
        (("curves", "ffn", "timings", 0, "median"), "-Infinity"),
        (("curves", "ffn", "timings", 0, "runs"), "0"),
        (("curves", "ffn", "timings", 0, "calls"), "-3"),
        (("curves", "ffn", "timings", 0, "runs"), DIGITS),
        (("curves", "ffn", "timings", 0, "stopped"), '"' + "x" * 100_000 + '"'),
    ],
)
def test_every_damaged_field_is_one_line(table: Path, keys: tuple[str | int, ...], value: str) -> None:
    assert CliRunner().invoke(main, ["show", str(table)]).exit_code == 0  # before the damage
    document = json.loads(table.read_text())
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = "DAMAGE"
    table.write_text(json.dumps(document).replace('"DAMAGE"', value))
    shown(table)


def test_names_in_files_cannot_control_the_terminal() -> None:
    assert shortened("a\x1b[2Jb\r\nc\ud800") == "a?[2Jb c?"
    assert shortened("x" * 1000, 10) == "xxxxxx…xxx"
    error = TableError("m" * 10_000, "h" * 10_000)
    assert len(str(error)) <= 500


def test_files_that_cannot_be_read_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "nul\0", Path("/dev/zero")):
        with pytest.raises(UnreadableTable, match="cannot read") as caught:
            LatencyTable.load(path)
        assert caught.value.exit_code == 1
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTable, match="it is not a file"):
        LatencyTable.load(tmp_path / "pipe")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(TableError, match="has 1000000000000 bytes; tables have at most"):
        LatencyTable.load(tmp_path / "huge.json")

    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.json").touch()
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UnreadableTable, match=r"cannot read .*: Permission denied"):
        LatencyTable.load(tmp_path / "secret.json")


@pytest.mark.parametrize(
    "text", ["9" * 5000, f"{'9' * 5000}*0.9^i", f"{DIGITS}*0.9^i", f"0..{'9' * 5000}", f"0..{DIGITS}"]
)
def test_sizes_of_many_digits_are_refused(text: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_sizes(text)
    assert len(str(caught.value)) <= 500


def test_endless_lists_of_sizes_are_refused() -> None:
    with pytest.raises(SizeError, match="cannot make a grid"):
        geometric_sizes(10**9, 1 - 1e-9)
    with pytest.raises(SizeError, match="a range has more than 100000 sizes"):
        parse_sizes("1000000000..0")
    with pytest.raises(SizeError, match="there are 1000000001 sizes; use at most 100000"):
        LatencyCurve(range(1_000_000_001), ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "100000"], "threads is 100000; use an integer from 1 to "),
        (["--threads", "9" * 30], "threads is 999"),
        (["--batch", "100000000"], "more than this machine has; use a smaller batch or shape"),
        (["--heads", "1000000000", "--hidden", "1000000000"], "there are 1000000001 sizes"),
        (["--max-seconds", "nan"], "max_seconds is nan"),
        (["--rel-error", "nan"], "rel_error is nan"),
        (["--engine", "onnxruntime", "--threads", "20000"], "threads is 20000"),
    ],
)
def test_options_out_of_range_are_usage_errors(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", "transformer_attention", *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_unexpected_errors_and_interruptions_have_no_traceback(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: BaseException) -> None:
        def load(path: Path) -> LatencyTable:
            raise error

        monkeypatch.setattr(LatencyTable, "load", load)

    for error, code, message in (
        (RuntimeError("first\nsecond"), 70, "unexpected RuntimeError: first; set LATENCY_PROFILER_DEBUG=1"),
        (OSError(5, "Input/output error"), 1, "Input/output error; check the disk"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was saved"),
    ):
        fail(error)
        result = CliRunner().invoke(main, ["show", str(table)])
        assert result.exit_code == code
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_temporary_names_are_recognisable_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".table.json.")
        assert temporary.name.endswith(PARTIAL)
        assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]
    with pytest.raises(ZeroDivisionError), atomic_files(path) as inner:
        inner.write_text(str(1 / 0))
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]
    with atomic_files(path) as inner:
        assert inner.parent.name.endswith(PARTIAL)
        assert inner.name == "table.json"
        inner.write_text("newer")
        inner.with_name("table.json.data").write_text("data")
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {
        "table.json": "newer",
        "table.json.data": "data",
    }
    long = tmp_path / ("n" * 250 + ".json")
    with atomic_write(long) as temporary:
        temporary.write_text("long")
    assert long.read_text() == "long"


def test_files_and_folders_are_synchronised_before_and_after_the_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(handle: int) -> None:
        events.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def seen_replace(self: Path, target: Path) -> Path:
        events.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("1")
    assert events == [temporary.name, "replace", tmp_path.name]


def test_targets_that_cannot_be_written_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with (
        pytest.raises(OutputFileError, match=r"cannot write .*: Is a directory"),
        atomic_write(folder) as new,
    ):
        new.write_text("")
    with pytest.raises(OptionError, match=r"cannot write .*: not a valid path"), atomic_write(Path("nul\0")):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]

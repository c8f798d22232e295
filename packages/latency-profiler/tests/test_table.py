"""Latency tables: predictions, files and environments."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from latency_profiler import (
    Environment,
    EnvironmentMismatch,
    LatencyCurve,
    LatencyTable,
    OptionError,
    SizeError,
    TableError,
    profile,
)
from latency_profiler.cli import main
from latency_profiler_clock import FakeClock

HERE = Environment.current(batch_size=8, sequence_length=128, threads=1)
TABLE = LatencyTable(
    HERE,
    0.5,
    {"attention": LatencyCurve((12, 4, 0), (3.0, 2.0, 0.0)), "ffn": LatencyCurve((64, 0), (4.0, 0.25))},
)


def test_prediction_is_the_sum_of_the_parts() -> None:
    assert TABLE.predict({"attention": [12, 8], "ffn": [64, 0]}) == 0.5 + (3.0 + 2.5) + (4.0 + 0.25)
    assert TABLE.predict({}) == 0.5


def test_speedup_is_over_the_same_modules_at_their_largest_size() -> None:
    assert TABLE.speedup({"attention": [12, 12], "ffn": [64]}) == 1.0
    assert TABLE.speedup({"attention": [4], "ffn": [0]}) == (0.5 + 3.0 + 4.0) / (0.5 + 2.0 + 0.25)
    assert LatencyTable(HERE, 0.0, TABLE.curves).speedup({"attention": [0]}) == float("inf")


@given(st.lists(st.sampled_from([12, 9, 4, 1, 0]), min_size=1, max_size=12), st.data())
def test_smaller_modules_are_never_slower(sizes: list[int], data: st.DataObject) -> None:
    smaller = [data.draw(st.integers(0, size)) for size in sizes]
    assert TABLE.predict({"attention": smaller}) <= TABLE.predict({"attention": sizes})
    assert TABLE.speedup({"attention": sizes}) >= 1.0


def test_saved_table_is_loaded_unchanged(tmp_path: Path) -> None:
    clock = FakeClock()
    curve = profile(
        lambda size: clock.work(1.0 + size, 2.0 + size), [3, 1, 0], (), clock=clock, max_seconds=50
    )
    table = LatencyTable(HERE, 1 / 3, {**TABLE.curves, "ffn": curve})
    table.save(tmp_path / "latency.json")
    again = LatencyTable.load(tmp_path / "latency.json", HERE)
    assert again == table
    assert again.curves["ffn"].timings[0].stopped == "max_seconds"
    assert [path.name for path in tmp_path.iterdir()] == ["latency.json"]


def test_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latency.json"
    TABLE.save(path)
    before = path.read_text()

    def full_disk(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match=r"cannot write .*: No space left on device; free some space"):
        LatencyTable(HERE, 1.0, TABLE.curves).save(path)
    monkeypatch.undo()
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["latency.json"]


def test_file_has_the_permissions_of_an_ordinary_file(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "latency.json")
    (tmp_path / "plain").touch()
    assert (tmp_path / "latency.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def edit(path: Path, *keys: str, value: object = None) -> None:
    """Overwrite one field of a saved table, or remove it if the value is None."""
    document = json.loads(path.read_text())
    place = document
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("format",), None, "is not a latency table; create one with"),
        (("version",), 2, "has schema version 2, but only 1 can be read; install"),
        (("version",), None, "has schema version None"),
        (("fixed",), None, "is corrupt: fixed is missing; profile again"),
        (("fixed",), -1.0, "is corrupt: the fixed part is -1.0 seconds"),
        (("fixed",), "soon", "is corrupt: fixed has the invalid value 'soon'"),
        (("curves",), {}, "is corrupt: the table has no curves"),
        (("curves",), [1], "is corrupt: curves has the invalid value [1]"),
        (("curves", "ffn"), [1, 2], "is corrupt: expected an object, found [1, 2]"),
        (("curves", "ffn", "sizes"), [0, 64], "is corrupt: curve sizes are not in falling order"),
        (("curves", "ffn", "sizes"), [64, -1], "is corrupt: size -1 is negative"),
        (
            ("curves", "ffn", "seconds"),
            [1.0, 2.0],
            "is corrupt: a smaller size takes longer than a larger one",
        ),
        (("curves", "ffn", "timings"), [{"seconds": 1.0}] * 2, "is corrupt: low is missing"),
        (("environment", "threads"), None, "is corrupt: threads is missing"),
        (("environment", "moon"), "full", "is corrupt: unknown field 'moon'"),
        (
            ("environment", "versions"),
            {"a\nb": None},
            "is corrupt: the version of a b has the invalid value None",
        ),
    ],
)
def test_corrupt_and_foreign_files_are_reported(
    tmp_path: Path, keys: tuple[str, ...], value: object, message: str
) -> None:
    path = tmp_path / "latency.json"
    TABLE.save(path)
    edit(path, *keys, value=value)
    with pytest.raises(TableError) as caught:
        LatencyTable.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def paths_in(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List the paths to all values inside a JSON document, including the document itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(below for key, item in items for below in paths_in(item, (*path, key)))]


SCALARS = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)
)


@given(st.data())
def test_any_modified_file_is_rejected_or_gives_a_working_table(data: st.DataObject) -> None:
    clock = FakeClock()
    curve = profile(lambda size: clock.work(1.0 + size), [1, 0], (), clock=clock, max_seconds=50)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latency.json"
        LatencyTable(HERE, 0.5, {"ffn": curve}).save(path)
        document = json.loads(path.read_text())
        *parents, last = data.draw(st.sampled_from(paths_in(document)[1:]))
        place = document
        for key in parents:
            place = place[key]
        place[last] = data.draw(ANYTHING)
        path.write_text(json.dumps(document))
        result = CliRunner().invoke(main, ["show", str(path)])
        if result.exit_code != 0:
            assert result.stderr.startswith("Error: ")
            assert result.stderr.count("\n") == 1
            return
        table = LatencyTable.load(path)
        assert str(table)
        table.environment.differences(HERE)
        for kind in table.curves:
            assert table.speedup({kind: [1, 0.5, 0]}) >= 1.0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1, 2]", b"null", b"[" * 100_000, b"9" * 5000])
def test_files_that_are_not_tables_are_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "latency.json"
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"is not (JSON|a latency table)"):
        LatencyTable.load(path)


def test_missing_files_and_folders_are_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    with pytest.raises(TableError, match=r"cannot read .*pipe: it is not a file"):
        LatencyTable.load(tmp_path / "pipe")
    with pytest.raises(TableError, match=r"cannot read .*: No such file or directory; check the path"):
        LatencyTable.load(tmp_path / "none.json")
    with pytest.raises(OptionError, match=r"cannot write .*: No such file or directory; choose a folder"):
        TABLE.save(tmp_path / "none" / "latency.json")


def test_table_from_another_environment_must_be_allowed_explicitly(tmp_path: Path) -> None:
    there = dataclasses.replace(HERE, device_name="Other CPU", versions={**HERE.versions, "torch": "1.0"})
    LatencyTable(there, 0.5, TABLE.curves).save(tmp_path / "there.json")
    with pytest.raises(EnvironmentMismatch) as caught:
        LatencyTable.load(tmp_path / "there.json", HERE)
    message = str(caught.value)
    assert f"device_name {HERE.device_name} here, Other CPU there" in message
    assert f"torch version {torch.__version__} here, 1.0 there" in message
    assert message.endswith("profile again here, or pass allow_other_environment=True")
    assert LatencyTable.load(tmp_path / "there.json", HERE, allow_other_environment=True).environment == there


def test_every_field_but_the_load_average_counts_as_a_difference() -> None:
    assert HERE.differences(dataclasses.replace(HERE, load_average=99.0)) == []
    changes = {
        "device": "cuda",
        "device_name": "?",
        "capability": "?",
        "cores": 999,
        "system": "?",
        "threads": 99,
        "dtype": "?",
        "engine": "?",
        "quantization": "?",
        "versions": {"python": "2"},
        "clock": "cpu",
        "batch_size": 1,
        "sequence_length": None,
        "details": {"attention": "flash"},
    }
    assert {*changes, "load_average"} == {field.name for field in dataclasses.fields(Environment)}
    for name, value in changes.items():
        assert HERE.differences(dataclasses.replace(HERE, **{name: value}))  # type: ignore[arg-type]


def test_current_environment_is_described() -> None:
    environment = Environment.current(
        dtype=torch.bfloat16,
        batch_size=2,
        threads=3,
        clock=FakeClock(),
        engine="compile",
        details={"prompt": 5},
    )
    assert (environment.dtype, environment.threads, environment.clock) == ("bfloat16", 3, "fake")
    assert (environment.engine, environment.device, environment.batch_size) == ("compile", "cpu", 2)
    assert environment.versions["torch"] == torch.__version__
    assert environment.device_name
    text = str(environment)
    assert "3 threads, bfloat16, compile, batch 2, fake clock" in text
    assert text.endswith("prompt 5")
    assert Environment.from_dict(json.loads(json.dumps(environment.to_dict()))) == environment


def test_invalid_arguments_are_reported() -> None:
    with pytest.raises(OptionError, match="the table has no curve 'attn'; use one of attention, ffn"):
        TABLE.predict({"attn": [1]})
    with pytest.raises(SizeError, match="size 13 is outside the measured range; use sizes from 0 to 12"):
        TABLE.predict({"attention": [13]})
    with pytest.raises(OptionError, match="batch_size is 0"):
        Environment.current(batch_size=0)
    with pytest.raises(OptionError, match="there is no meta device on this machine; use device 'cpu'"):
        Environment.current(device="meta")
    assert "attention: 12: 3 s, 4: 2 s, 0: 0 ns" in str(TABLE)

"""Run folders of version 0.1 can be read but not resumed; folders of other formats are refused."""

import json
import shutil
from pathlib import Path

import pytest
import ziplm
from click.testing import CliRunner, Result
from ziplm import BadRun
from ziplm.cli import main
from ziplm_compressed import options_for, write_files

OLD_NAMES = {
    "state/fisher.safetensors": "state/metric.safetensors",
    "state/dense-metrics.json": "state/dense.json",
}
FROM_0_1 = "was made by ziplm 0.1 and cannot be resumed; choose another --output"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of this version."""
    run = tmp_path_factory.mktemp("made") / "run"
    ziplm.compress(**options_for(files, "bert", run, speedup=[2]))
    return run


@pytest.fixture
def old(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the run as version 0.1 would have left it."""
    run = tmp_path / "old"
    shutil.copytree(made, run)
    (run / "ziplm-run.json").unlink()
    for name, before in OLD_NAMES.items():
        (run / name).rename(run / before)
    path = run / "2x" / "metrics.json"
    metrics = json.loads(path.read_text())
    del metrics["metric"]["greater_is_better"]
    path.write_text(json.dumps(metrics))
    return run


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of every file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_status_reads_a_run_of_0_1(old: Path) -> None:
    before = contents(old)
    result = invoke("status", old)
    assert result.exit_code == 0, result.output
    assert "made by ziplm 0.1: it can be read, but not resumed" in result.output
    for done in ("latency table", "fisher", "target 2x"):
        assert f"done   {done}" in result.output
    assert "to do" not in result.output
    assert contents(old) == before


def test_status_of_a_run_of_this_version_says_nothing_about_0_1(made: Path) -> None:
    result = invoke("status", made)
    assert result.exit_code == 0, result.output
    assert "0.1" not in result.output.replace("±0.1", "")  # the width of an interval is no version


def test_evaluate_reads_a_member_of_0_1(files: Path, old: Path) -> None:
    result = invoke(
        *("evaluate", old / "2x", "--task", "classification", "--json", "--max-length", 16),
        *("--validation-file", files / "valid.csv"),
    )
    assert result.exit_code == 0, result.output
    reported = json.loads((old / "2x" / "metrics.json").read_text())["metrics"]["compressed"]
    assert json.loads(result.stdout) == {"validation": pytest.approx(reported["validation"])}


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--speedup", 3)], ids=["same", "dry run", "more"])
def test_compress_refuses_a_run_of_0_1_and_touches_nothing(old: Path, more: tuple[object, ...]) -> None:
    before = contents(old)
    result = invoke("compress", "--config", old / "config.toml", "-o", old, *more)
    assert result.exit_code == BadRun.exit_code == 5
    assert FROM_0_1 in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert contents(old) == before


def test_the_function_refuses_a_run_of_0_1_as_well(files: Path, old: Path) -> None:
    with pytest.raises(BadRun, match=FROM_0_1):
        ziplm.compress(**options_for(files, "bert", old, speedup=[2]))


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["compress", "dry run"])
@pytest.mark.parametrize(("number", "named"), [(1, "1"), (3, "3"), (None, "unknown")])
def test_a_run_of_another_format_is_refused(
    made: Path, tmp_path: Path, number: int | None, named: str, more: tuple[str, ...]
) -> None:
    run = tmp_path / "other"
    shutil.copytree(made, run)
    marker = json.loads((run / "ziplm-run.json").read_text())
    (run / "ziplm-run.json").write_text(json.dumps({**marker, "format": number}))
    before = contents(run)
    result = invoke("compress", "--config", run / "config.toml", "-o", run, *more)
    assert result.exit_code == 5
    assert f"is a run of format {named}, and this version resumes format 2; choose another" in result.stderr
    assert contents(run) == before


def test_a_damaged_marker_is_named(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "damaged"
    shutil.copytree(made, run)
    (run / "ziplm-run.json").write_text("{")
    result = invoke("compress", "--config", run / "config.toml", "-o", run)
    assert result.exit_code == 5
    assert "ziplm-run.json is damaged" in result.stderr

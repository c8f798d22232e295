"""Every error is one short line with a documented exit code, whatever the command line and its files hold."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import ziplm
from click.testing import CliRunner, Result
from ziplm import errors
from ziplm.cli import main
from ziplm_compressed import command_line, options_for, write_files
from ziplm_faults import Command, give_up_permissions, needs_permissions
from ziplm_models import tiny_model

ARGUMENTS = ["compress", "m", "--task", "sst2", "-o", "o", "--speedup", "2"]
HUGE = "9" * 400


def invoke(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env)


def error_of(result: Result) -> str:
    """Return the line that says what is wrong; click shows the usage before it."""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert result.stderr.rstrip("\n").endswith(line)
    assert len(line) <= 500
    return line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--threads", 20_000),
        ("--threads", 10**6),
        ("--threads", HUGE),
        ("--batch-size", 100_000_000),
        ("--calibration-batch-size", 100_000_000),
        ("--train-batch-size", 100_000_000),
        ("--input-length", 10**9),
        ("--max-length", HUGE),
        ("--memory-gb", "1e300"),
        ("--memory-gb", "inf"),
        ("--memory-gb", "nan"),
        ("--dense-epochs", -1),
        ("--dense-epochs", "1e300"),
        ("--epochs-per-step", "1e300"),
        ("--profile-seconds", "1e300"),
        ("--evaluations", HUGE),
        ("--seed", HUGE),
        ("--seed", "1" * 5000),
        ("--speedup", HUGE),
        ("--speedup", "1e400"),
        ("--regime", "x" * 10_000),
        ("--regime", "a\nb"),
        ("--preset", "x\ny" * 1000),
    ],
)
def test_values_out_of_range_are_usage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: object
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*ARGUMENTS, option, value)
    assert result.exit_code == 2, result.output
    error_of(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
@pytest.mark.parametrize("name", ["model", "output", "train_file", "label_column"])
def test_text_that_is_no_text_is_a_usage_error(name: str, text: str) -> None:
    values = {"model": "m", "task": "sst2", "output": "o", "speedup": 2.0, name: text}
    with pytest.raises(ziplm.UsageError, match=rf"{name} is .*; give text in UTF-8"):
        ziplm.Options(**values)


TOMLS = {
    "a huge number": f"seed = {HUGE}",
    "thousands of digits": f"seed = {'9' * 5000}",
    "a huge target": f"speedup = [{HUGE}]",
    "nested": f"model = {'[' * 10**5}",
    "nested tables": "a." * 10**5 + "b = 1",
    "a zero byte": 'train_file = "a\\u0000b"',
    "infinite": "speedup = inf",
    "a date": "speedup = 1979-05-27",
    "not UTF-8": "\udcff",
    "long": f'regime = "{"x" * 10_000}"',
    "a long name": f"{'x' * 10_000} = 1",
}


@pytest.mark.parametrize("what", TOMLS)
def test_a_bad_config_file_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.toml"
    file.write_bytes(TOMLS[what].encode("utf-8", "surrogateescape"))
    result = invoke(*ARGUMENTS[:-2], "--config", file)
    assert result.exit_code == 2, result.output
    error_of(result)


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
@pytest.mark.parametrize("value", ["x", "-1", "", "1.5", "٣", HUGE])
def test_variables_of_torchrun_that_are_no_numbers_are_usage_errors(
    tmp_path: Path, variable: str, value: str
) -> None:
    result = invoke(*ARGUMENTS, "-o", tmp_path / "run", env={variable: value})
    assert result.exit_code == 2, result.output
    assert variable in error_of(result)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("made") / "run"
    ziplm.compress(**options_for(files, "bert", run, speedup=2))
    return run


def test_paths_in_a_config_file_are_relative_to_it(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = options_for(Path(), "bert", Path("run"), speedup=2)
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    (files / "config.toml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    result = invoke("compress", "--config", files / "config.toml")
    assert result.exit_code == 0, result.output
    assert (files / "run" / "2x" / "metrics.json").is_file()
    assert list(tmp_path.iterdir()) == []
    # The options of the run mean the same everywhere, and a command with relative paths resumes it.
    monkeypatch.chdir(files)
    assert invoke("compress", "--config", "run/config.toml", "--speedup", 2).exit_code == 0
    assert len(ziplm.compress(**values)) == 1


def test_a_name_on_the_hub_in_a_config_file_stays_a_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'model = "some/model"\ntask = "sst2"\nspeedup = 2.0\noutput = "run"'
    )
    result = invoke("compress", "--config", tmp_path / "config.toml")
    assert result.exit_code == 4
    assert "there is no folder some/model" in result.stderr


def test_weights_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ziplm.save(tiny_model("BertModel"), tmp_path / "small")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "small").iterdir()}
    assert modes.pop("config.json") == 0o640
    assert set(modes.values()) == {0o640}
    assert stat.S_IMODE((tmp_path / "small").stat().st_mode) == 0o750


@needs_permissions
@pytest.mark.parametrize("name", ["config.toml", "state/seconds.json", "2x/metrics.json"])
def test_a_file_that_cannot_be_read_is_not_missing(made: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(made, tmp_path / "run"))
    assert Command(["status", str(run)], give_up_permissions).wait()[0] == 0  # control
    (run / name).chmod(0)
    code, printed = Command(["status", str(run)], give_up_permissions).wait()
    assert code == 1, printed
    assert "Permission denied" in printed
    assert len(printed.splitlines()) == 1


LIMITED = """
import resource, signal, sys
from ziplm.cli import main
import ziplm.api
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop()),) * 2)
main(prog_name="ziplm")
"""


@pytest.mark.parametrize("limit", [0, 100, 2000, 20_000])
def test_a_write_that_fails_in_a_library_is_a_failed_write(files: Path, tmp_path: Path, limit: int) -> None:
    """The limit of file sizes stands for a full disk: libraries meet it in the same calls."""
    line = command_line(options_for(files, "bert", tmp_path / "run", speedup=2))
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, *line, "--quiet", str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stderr
    (error,) = ended.stderr.splitlines()
    assert "File too large" in error
    assert "Traceback" not in error
    ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=2))  # with space, it resumes


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["python", "torch"],
)
def test_memory_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ziplm.api.run_compress", fail)
    result = invoke(*ARGUMENTS)
    assert result.exit_code == 1
    assert "there is not enough memory" in error_of(result)


KINDS = {
    1: OSError(28, "No space left on device"),
    2: ziplm.UsageError("a\nb" * 1000, "c"),
    3: ziplm.UnsupportedModel("a", "b\n" * 1000),
    4: ziplm.BadCheckpoint("a\nb", "c" * 1000),
    5: ziplm.BadRun("a\0b\x1b[2J", "c"),
    6: ziplm.UnreachableTarget("a", "b"),
    7: errors.MissingExtra("a", "b"),
    8: errors.NotFinite("a", "b"),
    70: RuntimeError("a" * 1000 + "\nb"),
    130: KeyboardInterrupt(),
}


@pytest.mark.parametrize("code", KINDS)
def test_every_kind_of_error_is_one_short_line_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KINDS[code]

    monkeypatch.setattr("ziplm.api.run_compress", fail)
    result = invoke(*ARGUMENTS)
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert line == error_of(result)
    assert line.isprintable()


def test_the_help_page_lists_the_exit_code_of_every_error() -> None:
    shown = invoke("--help").stdout
    listed = {int(code) for code in re.findall(r"^ *(\d+)  ", shown, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert listed == {0, 70, 130, *(kind.exit_code for kind in kinds)} == {0, 1, 2, 3, 4, 5, 6, 7, 8, 70, 130}

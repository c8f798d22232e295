"""Runs that are killed, interrupted or out of space, at points chosen at random, lose nothing and resume.

A few points are tried here in the default run; with ``-m faults`` (``nox -s faults``) many are.
"""

import errno
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ziplm
from ziplm import files as ziplm_files
from ziplm_compressed import options_for, without_times, write_files
from ziplm_gradual import gradual_options
from ziplm_interrupted import compress_until
from ziplm_killed import CONTEXT, run_to_point

SEED = 17
TARGETS = ("1.5x", "3x")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def whole(files: Path) -> Path:
    """Make a run without faults."""
    ziplm.compress(**options_for(files, "bert", files / "whole", speedup=[1.5, 3]))
    return files / "whole"


def names_in(folder: Path) -> list[str]:
    """Return all names in a run folder; only the command line writes a report page."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return sorted(names - {"report.html"})


def assert_same_run(found: Path, whole: Path, targets: tuple[str, ...] = TARGETS) -> None:
    """Assert that two runs have the same files, weights and reports, except for times."""
    for target in targets:
        reports = [json.loads((run / target / "metrics.json").read_text()) for run in (found, whole)]
        for report in reports:
            report.get("training", {}).pop("seconds", None)
        assert without_times(reports[0]) == without_times(reports[1])
        weights = [(run / target / "model.safetensors").read_bytes() for run in (found, whole)]
        assert weights[0] == weights[1]
    assert names_in(found) == names_in(whole)


# Kills


def kill_again_and_again(options: dict[str, Any], whole: Path, killed: Path, count: int, seed: int) -> None:
    """Kill a run at random points, each process resuming from the one before, until it is finished."""
    notes = killed.with_suffix(".json")
    assert run_to_point({**options, "output": str(whole)}, 0, notes) == 0
    passed = json.loads(notes.read_text())
    points = sorted(random.Random(seed).sample(range(1, len(passed) + 1), count))
    for before, point in zip([0, *points], points, strict=False):
        code = run_to_point({**options, "output": str(killed)}, point - before, notes)
        assert code in (-signal.SIGKILL, 0), (seed, points)
    assert run_to_point({**options, "output": str(killed)}, 0, notes) == 0


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_oneshot_run_killed_at_random_points_ends_with_the_same_files(
    files: Path, tmp_path: Path, seed: int
) -> None:
    options = options_for(files, "bert", tmp_path, speedup=[1.5, 3])
    kill_again_and_again(options, tmp_path / "whole", tmp_path / "killed", 12, seed)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_gradual_run_killed_at_random_points_ends_with_the_same_files(tmp_path: Path, seed: int) -> None:
    options = {**gradual_options(tmp_path), "dense_steps": 2}
    kill_again_and_again(options, tmp_path / "whole", tmp_path / "killed", 12, seed)
    assert_same_run(tmp_path / "killed", tmp_path / "whole", ("1.5x", "2.5x"))


# Full disks


def full_at(index: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let a write fail, and all after it, as on a full disk; return a function that counts the writes."""
    count = 0
    fsync, write = os.fsync, os.write

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if 0 <= index < count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments)

        return call

    # Every file that we write is synced before it gets its name, and a full disk may show only then.
    monkeypatch.setattr(os, "fsync", counted(fsync))
    monkeypatch.setattr(os, "write", counted(write))
    return lambda: count


def try_full_disks(files: Path, whole: Path, run: Path, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_for(files, "bert", run, speedup=[1.5, 3])
    with monkeypatch.context() as patch:
        counted = full_at(-1, patch)
        ziplm.compress(**{**options, "output": str(run.with_name("counted"))})
        writes = counted()
    assert writes > 50
    every = max(1, writes // wanted)
    for index in range(0, writes, every):  # the next one resumes what this one has left
        with monkeypatch.context() as patch:
            full_at(min(index, every), patch)
            with pytest.raises(OSError, match="No space left"):
                ziplm.compress(**options)
        if run.exists():
            assert not [path for path in run.rglob("*") if path.name.endswith(ziplm_files.PARTIAL)]
    ziplm.compress(**options)
    assert_same_run(run, whole)


def test_a_disk_that_is_full_at_some_writes_loses_nothing(
    files: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_full_disks(files, whole, tmp_path / "run", 4, monkeypatch)


@pytest.mark.faults
@pytest.mark.timeout(3000)
def test_a_disk_that_is_full_at_any_write_loses_nothing(
    files: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_full_disks(files, whole, tmp_path / "run", 10_000, monkeypatch)


# Interruptions


def interrupt_at(points: list[int], options: dict[str, Any]) -> list[int | None]:
    codes = []
    for point in [*points, 0]:
        process = CONTEXT.Process(target=compress_until, args=(dict(options), point))
        process.start()
        process.join(240)
        codes.append(process.exitcode)
    return codes


def assert_interrupted_runs_resume(files: Path, whole: Path, run: Path, count: int) -> None:
    options = options_for(files, "bert", run, speedup=[1.5, 3])
    chosen = random.Random(SEED)
    codes = interrupt_at([chosen.randint(1, 25) for _ in range(count)], options)
    assert codes[-1] == 0
    assert set(codes) <= {0, 130}
    assert 130 in codes
    assert_same_run(run, whole)


def test_a_run_interrupted_at_random_points_ends_with_the_same_files(
    files: Path, whole: Path, tmp_path: Path
) -> None:
    assert_interrupted_runs_resume(files, whole, tmp_path / "run", 3)


@pytest.mark.faults
@pytest.mark.timeout(3000)
def test_a_run_interrupted_at_many_random_points_ends_with_the_same_files(
    files: Path, whole: Path, tmp_path: Path
) -> None:
    assert_interrupted_runs_resume(files, whole, tmp_path / "run", 30)


# Folders that cannot be written


@pytest.mark.skipif(sys.platform == "win32" or not Path("/proc").is_dir(), reason="needs a read-only folder")
@pytest.mark.parametrize("folder", ["/proc/run", "/proc"])
def test_a_folder_that_cannot_be_written_is_a_failed_write(files: Path, folder: str) -> None:
    """Root may write into every folder of an ordinary file system, but not into this one."""
    with pytest.raises((OSError, ziplm.BadRun)) as raised:
        ziplm.compress(**options_for(files, "bert", Path(folder), speedup=[2]))
    assert isinstance(raised.value, OSError) == (folder == "/proc/run")


def test_a_run_folder_may_be_copied(files: Path, whole: Path, tmp_path: Path) -> None:
    """Control: a copy is a run folder as well, which another command continues."""
    shutil.copytree(whole, tmp_path / "copy")
    made = ziplm.compress(**options_for(files, "bert", tmp_path / "copy", speedup=[2]))
    assert [member.target for member in made] == ["2x"]

"""Runs that are killed at random points, and runs that six processes want at once, end with the same files.

A few points are tried here in the default run; with ``-m faults`` (``nox -s faults``) many are.
"""

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ziplm
from ziplm_compressed import options_for
from ziplm_faults import (
    KINDS,
    SEED,
    Command,
    assert_same_run,
    fault_options,
    quiet_line,
    write_fault_files,
)
from ziplm_killed import Kill, run, run_to_point
from ziplm_several import run_until_killed
from ziplm_shared import shared_gradual_options, shared_options, write_shared_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fault_files(tmp_path_factory.mktemp("files"))


# Kills at random points


def kill_again_and_again(options: dict[str, Any], whole: Path, killed: Path, count: int, seed: int) -> int:
    """Kill a run at random points, each process resuming from the one before, until it is finished.

    Returns:
        How many processes were killed: finished work is not repeated, so that a late point may not come.
    """
    notes = killed.with_suffix(".json")
    assert run_to_point({**options, "output": str(whole)}, 0, notes) == 0
    passed = json.loads(notes.read_text())
    points = sorted(random.Random(seed).sample(range(1, len(passed) + 1), count))
    codes = []
    for before, point in zip([0, *points], points, strict=False):
        codes.append(run_to_point({**options, "output": str(killed)}, point - before, notes))
        assert codes[-1] in (-signal.SIGKILL, 0), (seed, points)
    assert run_to_point({**options, "output": str(killed)}, 0, notes) == 0
    return codes.count(-signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_run_killed_at_random_points_ends_with_the_same_files(
    files: Path, tmp_path: Path, kind: str, seed: int
) -> None:
    options = fault_options(files, kind, tmp_path)
    assert kill_again_and_again(options, tmp_path / "whole", tmp_path / "killed", 12, seed) >= 6
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


# Kills during an export

EXPORTED = "state/targets/3x/exported/onnx"
KILLS_OF_AN_EXPORT = [
    Kill("write", f"{EXPORTED}/float32.onnx"),
    Kill("write", f"{EXPORTED}/folded-float32.onnx"),
    Kill("write", f"{EXPORTED}/*model_qint8.onnx"),
    Kill("rename", "state/targets/3x/exported"),
    Kill("write", "3x/onnx/model_qint8.onnx"),
    Kill("remove", "state/targets/3x/exported"),  # the member is complete, and the run is not told so
]


@pytest.mark.parametrize(
    "kills", [KILLS_OF_AN_EXPORT[4:], pytest.param(KILLS_OF_AN_EXPORT, marks=pytest.mark.faults)], ids=len
)
@pytest.mark.timeout(600)
def test_a_run_killed_during_its_export_ends_with_the_same_files(
    files: Path, tmp_path: Path, kills: list[Kill]
) -> None:
    options = fault_options(files, "engine", tmp_path / "killed")
    for kill in kills:
        assert run(options, kill) == -signal.SIGKILL, kill
    assert run(options) == 0
    assert run({**options, "output": str(tmp_path / "whole")}) == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


# Kills of one of two processes


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["oneshot", "gradual"])
def test_two_processes_of_which_one_is_killed_at_random_points_end_with_the_same_files(
    tmp_path: Path, kind: str
) -> None:
    files, dice = write_shared_files(tmp_path / "files"), random.Random(SEED)
    make = shared_gradual_options if kind == "gradual" else lambda *a: shared_options(a[0], "bert", a[1])
    assert run_until_killed(make(files, tmp_path / "whole"), 0, 0) == [0, 0]
    kills, most = 0, 1500 if kind == "gradual" else 400  # calls of modules; a whole run makes more
    for _ in range(12):
        rank = dice.randrange(2)
        codes = run_until_killed(make(files, tmp_path / "killed"), rank, dice.randint(1, most))
        assert codes[rank] in (-signal.SIGKILL, 0)
        assert (codes[1 - rank] == 0) == (codes[rank] == 0)
        kills += codes[rank] != 0
    assert kills >= 6
    assert run_until_killed(make(files, tmp_path / "killed"), 0, 0) == [0, 0]
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


# Six processes on one folder


def try_six_at_once(files: Path, tmp_path: Path, rounds: int) -> None:
    """Let six commands want a folder, kill the one that works in it, and let the next six resume."""
    ziplm.compress(**fault_options(files, "oneshot", tmp_path / "whole"))
    folder, dice = tmp_path / "run", random.Random(SEED)
    line = quiet_line(fault_options(files, "oneshot", folder))
    for last in [*[False] * rounds, True]:
        commands = [Command(line) for _ in range(6)]
        while sum(command.code is None for command in commands) > 1:
            time.sleep(0.01)
        time.sleep(dice.random())
        if not last:
            for command in commands:
                command.kill()
        codes = sorted(command.wait()[0] or 0 for command in commands)
        assert codes in ([0, 5, 5, 5, 5, 5], [-signal.SIGKILL, 5, 5, 5, 5, 5])
    assert codes[0] == 0
    assert_same_run(folder, tmp_path / "whole")


def test_of_six_commands_one_works_and_the_others_are_refused(files: Path, tmp_path: Path) -> None:
    try_six_at_once(files, tmp_path, 1)


@pytest.mark.faults
@pytest.mark.timeout(3000)
def test_of_six_commands_one_resumes_when_the_one_before_was_killed(files: Path, tmp_path: Path) -> None:
    try_six_at_once(files, tmp_path, 8)


def test_a_run_folder_may_be_copied(files: Path, tmp_path: Path) -> None:
    """Control: a copy is a run folder as well, which another command continues."""
    ziplm.compress(**options_for(files, "bert", tmp_path / "whole", speedup=[3]))
    shutil.copytree(tmp_path / "whole", tmp_path / "copy")
    made = ziplm.compress(**options_for(files, "bert", tmp_path / "copy", speedup=[2]))
    assert [member.target for member in made] == ["2x"]

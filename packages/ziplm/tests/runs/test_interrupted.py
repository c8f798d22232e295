"""A run that is interrupted, as by Ctrl-C, at random points has exit code 130 and ends with the same files.

A few points are tried here in the default run; with ``-m faults`` (``nox -s faults``) many are.
"""

import random
from pathlib import Path

import pytest
import ziplm
from ziplm_faults import (
    KINDS,
    SEED,
    Command,
    assert_same_run,
    fault_options,
    quiet_line,
    write_fault_files,
)
from ziplm_interrupted import interrupt_at


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fault_files(tmp_path_factory.mktemp("files"))


def interrupt_again_and_again(files: Path, kind: str, folder: Path, count: int) -> None:
    """Interrupt a run, each process resuming from the one before, and compare it with a whole one."""
    ziplm.compress(**fault_options(files, kind, folder / "whole"))
    line, dice = quiet_line(fault_options(files, kind, folder / "run")), random.Random(SEED)
    codes = []
    for point in [*(dice.randint(1, 25) for _ in range(count)), 0]:
        code, errors = Command(line, interrupt_at, point).wait()
        assert code in (0, 130), errors
        assert "Traceback" not in errors
        codes.append(code)
    assert codes[-1] == 0
    assert codes.count(130) >= min(3, count)
    assert_same_run(folder / "run", folder / "whole")


def test_a_run_interrupted_at_random_points_ends_with_the_same_files(files: Path, tmp_path: Path) -> None:
    interrupt_again_and_again(files, "oneshot", tmp_path, 3)


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_interrupted_at_many_random_points_ends_with_the_same_files(
    files: Path, tmp_path: Path, kind: str
) -> None:
    interrupt_again_and_again(files, kind, tmp_path, 15)

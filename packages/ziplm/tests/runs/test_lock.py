"""One process works in a run folder; the lock holds whatever happens to files, and ends with its process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ziplm import BadRun, Options
from ziplm.runs.marker import require_usable
from ziplm.runs.opening import open_run

OPEN = """
import sys
from ziplm import BadRun, Options
from ziplm.runs.opening import open_run
print("ready", flush=True)
sys.stdin.readline()
try:
    with open_run(Options(model="m", task="sst2", output=sys.argv[1], speedup=(2.0,))) as run:
        print("held", flush=True)
        sys.stdin.readline()
        run.stored(run.state / "found.json", dict)
    print("done", flush=True)
except BadRun as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""
IN_USE = "another process works in"


class Opener:
    """A process that opens a run folder when it is told to, and closes it when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OPEN, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.heard() == "ready"

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def openers(folder: Path, count: int) -> Iterator[list[Opener]]:
    started = [Opener(folder) for _ in range(count)]
    try:
        yield started
    finally:
        for opener in started:
            opener.process.kill()
            opener.process.communicate()


def open_here(folder: Path) -> None:
    with open_run(Options(model="m", task="sst2", output=str(folder), speedup=(2.0,))):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    with openers(tmp_path, 1) as (opener,):
        opener.tell()
        assert opener.heard() == "held"
        with pytest.raises(BadRun, match=rf"{IN_USE} .*; wait for it"):
            open_here(tmp_path)
        opener.process.kill()
        opener.process.wait()
        open_here(tmp_path)


def test_a_folder_that_another_process_makes_just_now_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, look = tmp_path / "run", Path.is_dir

    def is_dir(path: Path) -> bool:
        found = look(path)
        if path == folder and not found:
            folder.mkdir()  # after this look
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    require_usable(folder)
    assert look(folder)


def test_of_six_processes_one_wins(tmp_path: Path) -> None:
    """All start in a folder that does not exist yet, three times in a row."""
    for attempt in range(3):
        folder = tmp_path / str(attempt) / "run"
        with openers(folder, 6) as started:
            for opener in started:
                opener.tell()
            said = [opener.heard() for opener in started]
            assert said.count("held") == 1
            assert sum(IN_USE in text for text in said) == 5
            winner = started[said.index("held")]
            winner.tell()
            assert winner.heard() == "done"
            codes = [opener.process.wait(timeout=30) for opener in started]
            assert sorted(codes) == [0, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("deleted", ["state/lock", "ziplm-run.json"])
def test_a_file_deleted_during_a_run_lets_no_second_process_in(tmp_path: Path, deleted: str) -> None:
    with openers(tmp_path, 1) as (opener,):
        opener.tell()
        assert opener.heard() == "held"
        (tmp_path / deleted).unlink(missing_ok=True)
        with pytest.raises(BadRun):
            open_here(tmp_path)


def test_a_run_whose_folder_was_replaced_does_not_write_into_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with openers(folder, 1) as (opener,):
        opener.tell()
        assert opener.heard() == "held"
        folder.rename(tmp_path / "moved")
        open_here(folder)
        opener.tell()
        assert "was deleted or replaced by another process" in opener.heard()
        assert opener.process.wait(timeout=30) == 5
        assert not (folder / "state").exists()

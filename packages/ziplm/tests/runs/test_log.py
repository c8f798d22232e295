"""The log of a run holds everything that was shown, with times; a small file says what runs now."""

import json
import os
import re
import signal
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import ziplm
from ziplm import Options, UnreachableTarget
from ziplm.runs.folder import Run
from ziplm.runs.log import Logged
from ziplm.runs.opening import open_run
from ziplm_compressed import Recorder, options_for, write_files
from ziplm_killed import Kill, run

LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d)  (.+)")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


def entries(folder: Path) -> list[str]:
    """Return the texts of the log; every line has a time, and times do not go back."""
    found = [LINE.fullmatch(line) for line in (folder / "run.log").read_text("utf-8").splitlines()]
    times = [datetime.fromisoformat(line[1]) for line in found if line]
    assert len(times) == len(found)
    assert times == sorted(times)
    return [line[2] for line in found if line]


def logged(folder: Path) -> tuple[Logged, Recorder, Path]:
    recorder = Recorder()
    return Logged(recorder, folder / "run.log", folder / "now.json"), recorder, folder / "now.json"


def test_a_stage_is_logged_when_it_begins_and_with_its_time_when_it_ends(tmp_path: Path) -> None:
    log, recorder, _ = logged(tmp_path)
    with log.stage("search") as advance:
        assert entries(tmp_path) == ["search …"]
        advance(1, 2)
    assert re.fullmatch(r"search: \d+\.\d s", entries(tmp_path)[1])
    assert recorder.stages == ["search"]


def test_a_note_is_logged_and_shown_and_a_logged_line_is_not_shown(tmp_path: Path) -> None:
    log, recorder, _ = logged(tmp_path)
    log.note("target 2x")
    log.log("a command")
    assert entries(tmp_path) == ["target 2x", "a command"]
    assert recorder.notes == ["target 2x"]


def test_while_a_stage_runs_a_file_says_which_where_and_since_when(tmp_path: Path) -> None:
    log, _, now = logged(tmp_path)
    before = datetime.now().astimezone().replace(microsecond=0)
    with log.stage("search"):
        here = json.loads(now.read_text())
        assert before <= datetime.fromisoformat(here.pop("since")) <= datetime.now().astimezone()
        assert here == {"stage": "search", "pid": os.getpid(), "host": socket.gethostname()}
    assert not now.exists()


def test_a_stage_that_fails_is_logged_and_leaves_no_file(tmp_path: Path) -> None:
    log, _, now = logged(tmp_path)
    with pytest.raises(KeyboardInterrupt), log.stage("search"):
        raise KeyboardInterrupt
    assert re.fullmatch(r"search: stopped after \d+\.\d s", entries(tmp_path)[1])
    assert not now.exists()


def options_in(folder: Path) -> Options:
    return Options(model="m", task="sst2", output=str(folder), speedup=2.0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("no such file\nat all"), "stopped by OSError: no such file"),
        (KeyboardInterrupt(), "stopped by KeyboardInterrupt: KeyboardInterrupt"),
    ],
)
def test_the_command_and_the_error_that_ends_a_run_are_logged(
    tmp_path: Path, error: BaseException, text: str
) -> None:
    with pytest.raises(type(error)), open_run(options_in(tmp_path), command="ziplm compress m"):
        raise error
    assert entries(tmp_path) == [f"ziplm {ziplm.__version__}: ziplm compress m", text]


def test_every_command_adds_to_the_log(tmp_path: Path) -> None:
    for command in ("first", "second"):
        with open_run(options_in(tmp_path), command=command) as opened:
            opened.reporter.note(f"in {command}")
    start = f"ziplm {ziplm.__version__}: "
    assert entries(tmp_path) == [f"{start}first", "in first", f"{start}second", "in second"]


def arguments(files: Path, output: Path, **more: Any) -> dict[str, Any]:
    return options_for(files, "bert", output, **{"speedup": [1.5, 3], **more})


def test_the_log_of_a_run_holds_all_that_was_shown(files: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    ziplm.compress(**arguments(files, tmp_path / "run"), progress=recorder)
    found = entries(tmp_path / "run")
    assert found[0].startswith(f"ziplm {ziplm.__version__}: ziplm.compress(model=")
    assert [text.removesuffix(" …") for text in found if text.endswith(" …")] == recorder.stages
    finished = [match[1] for text in found if (match := re.fullmatch(r"(.+): \d+\.\d s", text))]
    assert sorted(finished) == sorted(recorder.stages)
    assert {"search", "refit", "evaluate 3x: validation"} <= set(recorder.stages)
    assert recorder.notes == [text for text in found if text in recorder.notes]
    assert "target 1.5x (1 of 2)" in recorder.notes
    assert not Run(tmp_path / "run").now_file.exists()


def test_an_error_between_stages_is_logged(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreachableTarget) as caught:
        ziplm.compress(**arguments(files, tmp_path / "run", speedup=[1000]))
    assert entries(tmp_path / "run")[-1] == f"stopped by UnreachableTarget: {caught.value}"


def reused(recorder: Recorder) -> list[str]:
    return [note.removeprefix("reusing ") for note in recorder.notes if note.startswith("reusing ")]


def test_results_of_an_earlier_process_are_named_once_and_own_ones_are_not(
    files: Path, tmp_path: Path
) -> None:
    folder, first, second = tmp_path / "run", Recorder(), Recorder()
    ziplm.compress(**arguments(files, folder, speedup=[1.5, 2]), progress=first)
    assert reused(first) == []  # the dense metrics of the first target serve the second, too
    ziplm.compress(**arguments(files, folder, speedup=[3, 4]), progress=second)
    named = reused(second)
    assert {"state/fisher.safetensors", "state/dense-metrics.json"} <= set(named)
    assert len(named) == len(set(named))
    assert not any("targets/3x" in name or "targets/4x" in name for name in named)
    assert all((folder / name).is_file() for name in named)
    assert [f"reusing {name}" for name in named] == [
        text for text in entries(folder) if text.startswith("reusing ")
    ]


def test_the_next_run_removes_what_a_killed_one_left_and_names_what_it_reuses(
    files: Path, tmp_path: Path
) -> None:
    options = arguments(files, tmp_path / "run", speedup=[2])
    assert run(options, Kill("progress", "search", 1)) == -signal.SIGKILL
    now = Run(tmp_path / "run").now_file
    assert json.loads(now.read_text())["stage"] == "search"
    with open_run(Options(**options)):
        assert not now.exists()

    recorder = Recorder()
    ziplm.compress(**options, progress=recorder)
    assert not now.exists()
    assert "state/fisher.safetensors" in reused(recorder)
    found = entries(tmp_path / "run")
    assert found.count("search …") == 2  # the first one has no end
    assert len([text for text in found if re.fullmatch(r"search: \d+\.\d s", text)]) == 1

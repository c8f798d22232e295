"""Bars show one line about the whole run above the stage's own bar; details are for those who ask."""

import io
import re
from pathlib import Path

import pytest
import ziplm
from rich.console import Console
from rich.progress import ProgressSample, Task, TaskID
from ziplm.runs.folder import Run
from ziplm.runs.forecast import Forecast
from ziplm.runs.log import Logged
from ziplm.runs.progress import Bars, FullReporter, Times
from ziplm_compressed import Recorder, options_for, write_files


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_line_about_the_whole_run_stands_above_the_bar_while_the_stage_runs(tmp_path: Path) -> None:
    console = terminal()
    run = Run(tmp_path, reporter=Bars(console))
    run.forecast = Forecast({"prune": 100.0}, {"2x": {"search": 600.0}, "4x": {"search": 600.0}})
    run.begin_target("2x", "target 2x")
    with run.stage("search") as advance:
        advance(1, 2)
    text = shown(console)
    assert "search · target 2x (1 of 2) · about 20 min left" in text
    assert text.index("· about") < text.index("━")
    assert "· about" not in text.rstrip().splitlines()[-1]  # what stays is the stage's own line


def test_a_finished_stage_shows_only_the_time_that_it_took(tmp_path: Path) -> None:
    console = terminal()
    with Run(tmp_path, reporter=Bars(console)).stage("search"):
        pass
    last = shown(console).replace("\x1b[?25h", "").rstrip().split("\r")[-1]
    assert re.search(r"100 % 0:00:0\d$", last), last


def test_a_running_stage_says_which_time_is_left() -> None:
    task = Task(TaskID(0), "search", 10, 5, _get_time=lambda: 70.0)
    task.start_time = 0.0
    task._progress.extend(ProgressSample(second, 0.5) for second in range(11))
    assert Times().render(task).plain == "0:01:10, 0:00:10 left"
    task.finished_time = 80.0
    assert Times().render(task).plain == "0:01:20"


def test_without_a_forecast_there_is_only_the_bar(tmp_path: Path) -> None:
    console = terminal()
    with Run(tmp_path, reporter=Bars(console)).stage("search"):
        pass
    assert "left" not in shown(console)


@pytest.mark.parametrize("verbose", [True, False])
def test_details_are_logged_always_and_shown_when_asked_for(tmp_path: Path, verbose: bool) -> None:
    console = terminal()
    log = Logged(Bars(console, verbose=verbose), tmp_path / "run.log", tmp_path / "now.json")
    Run(tmp_path, reporter=log).detail("refit: kept")
    assert ("refit: kept" in shown(console)) == verbose
    assert (tmp_path / "run.log").read_text().endswith("refit: kept\n")


def test_a_reporter_needs_neither_details_nor_the_whole_run(tmp_path: Path) -> None:
    recorder = Recorder()
    assert not isinstance(recorder, FullReporter)
    log = Logged(recorder, tmp_path / "run.log", tmp_path / "now.json")
    log.detail("refit: kept")
    log.overall = lambda seconds: "text"
    assert log.overall is None
    assert recorder.notes == []


def test_a_run_shows_its_stages_with_the_time_left_and_what_they_did(tmp_path: Path) -> None:
    console, files = terminal(), write_files(tmp_path)
    reporter = Bars(console, verbose=True)
    ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=[1.5, 3]), progress=reporter)
    text = shown(console)
    assert "target 3x (2 of 2) · about" in text
    log = (tmp_path / "run" / "run.log").read_text()
    for part in (
        "samples: 40 to calibrate, 10 to search, 10 to judge; 30 to evaluate (validation)",
        "search: losses of the priors' solutions: factored",
        "sizes (heads/width of each layer): ",
        "refit: divergence",
        "evaluate: accuracy",
        "difference",
    ):
        assert part in log
        assert part in text

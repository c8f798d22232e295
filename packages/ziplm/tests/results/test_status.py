"""The status of a run says what is running, and in which process."""

import io
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from ziplm import Options
from ziplm.cli import main
from ziplm.options.toml import save_options
from ziplm.results.status import read_status
from ziplm.runs.folder import Run
from ziplm.runs.forecast import Forecast
from ziplm.runs.log import Logged
from ziplm.runs.progress import Bars, Silent


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    save_options(Options(model="m", task="sst2", output=str(run.folder), speedup=2), run.options_file)
    run.state.mkdir()
    return run


def test_a_running_stage_is_shown_with_its_process(run: Run) -> None:
    logged = Logged(Silent(), run.log_file, run.now_file)
    with logged.stage("search"):
        status = read_status(run)
        assert status.now is not None
        assert (status.now["stage"], status.now["pid"]) == ("search", os.getpid())
        assert f"running now: search, process {os.getpid()}" in str(status)
    assert read_status(run).now is None
    assert "running now" not in str(read_status(run))


def test_the_time_left_of_a_running_run_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(Bars(Console(file=io.StringIO())), run.log_file, run.now_file)
    run.reporter = logged
    run.forecast = Forecast({"calibrate": 100.0, "prune": 500.0}, {"2x": {"search": 600.0}})
    with run.stage("calibrate"):
        status = read_status(run)
        assert status.now is not None
        assert 1190 < status.now["seconds_left"] <= 1200
        assert "about 20 min left" in str(status).splitlines()
        shown = CliRunner().invoke(main, ["status", str(run.folder), "--json"])
        assert 1190 < json.loads(shown.stdout)["now"]["seconds_left"] <= 1200
        # Later, only what follows is left: a stage that takes longer than planned takes nothing from it.
        for spent, left in ((60, 1140), (100, 1100), (5000, 1100)):
            now = json.loads(run.now_file.read_text())
            now["since"] = (datetime.now().astimezone() - timedelta(seconds=spent)).isoformat()
            run.now_file.write_text(json.dumps(now))
            assert read_status(run).now["seconds_left"] == pytest.approx(left, abs=5)  # type: ignore[index]


def test_without_a_forecast_no_time_is_invented(run: Run) -> None:
    with Logged(Silent(), run.log_file, run.now_file).stage("search"):
        status = read_status(run)
        assert status.now is not None
        assert status.now["seconds_left"] is None
        assert " left" not in str(status)


def test_a_stage_of_a_killed_process_is_not_running(run: Run) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from ziplm.runs.log import Logged; "
        "from ziplm.runs.progress import Silent\n"
        "with Logged(Silent(), Path(sys.argv[1]), Path(sys.argv[2])).stage('search'): "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, run.log_file, run.now_file], check=False)
    assert run.now_file.exists()  # the process had no chance to remove it
    assert read_status(run).now is None


def test_the_keys_of_finished_parts_do_not_change_with_progress(run: Run) -> None:
    before = json.loads(CliRunner().invoke(main, ["status", str(run.folder), "--json"]).stdout)
    run.trace_file("layer0.ffn").parent.mkdir()
    run.trace_file("layer0.ffn").touch()
    after = json.loads(CliRunner().invoke(main, ["status", str(run.folder), "--json"]).stdout)
    assert list(before["done"]) == list(after["done"])
    assert (before["traces"], after["traces"]) == (0, 1)

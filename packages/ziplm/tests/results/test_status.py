"""The status of a run says what is running, and in which process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ziplm import Options
from ziplm.cli import main
from ziplm.options.toml import save_options
from ziplm.results.status import read_status
from ziplm.runs.folder import Run
from ziplm.runs.log import Logged
from ziplm.runs.progress import Silent


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

"""Runs every command in the ``console`` blocks of the documentation, on tiny models; see stand_in.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ziplm_commands import ROOT, console_commands, documents
from ziplm_documented import write_world
from ziplm_reports import write_run

STAND_IN = Path(__file__).parent / "stand_in.py"
PRELUDE = f"""
mkfifo requests answers
"{sys.executable}" "{STAND_IN}" requests answers &
trap "kill $!" EXIT
stand_in() {{ printf '%s\\0' "$@" > requests; local code; read -r code < answers; return "$code"; }}
"""
DOCUMENTS = [document for document in documents() if console_commands(document)]
RUNS = {
    "runs/sst2": "ziplm compress textattack/bert-base-uncased-SST-2 --task sst2 --speedup 2 --speedup 4",
    "runs/mine": "ziplm compress models/mine --task classification --train-file train.csv "
    "--validation-file dev.csv --speedup 2 --speedup 4",
}
"""Runs that pages use, by folder, with the commands that make them."""
SECONDS = 1800


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models and data; and what is made by a benchmark or by the reader."""
    folder = tmp_path_factory.mktemp("documented") / "world"
    write_world(folder)
    (folder / "packages").symlink_to(ROOT / "packages")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "train.py").write_text("import os\nassert os.environ['WORLD_SIZE'] == '2'\n")
    for name in ("gradual-0", "oneshot-0"):
        write_run(folder / "build" / "gradual" / "sst2" / name)
    made = run_script([f"{command} -o {run}" for run, command in RUNS.items()], folder)
    assert made.returncode == 0, made.stderr[-4000:]
    return folder


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_run(document: Path, world: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    commands = console_commands(document)
    subprocess.run(["cp", "-a", str(world), str(folder)], check=True)
    if any(" compress " in command for command in commands):
        shutil.rmtree(folder / "runs")  # the page makes its own
    result = run_script(commands, folder)
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"


@pytest.mark.parametrize(
    "wrong",
    [
        "ziplm compress models/mine --task classification --speeedup 2",
        "ziplm evaluate models/mine --task classification --validation-file nowhere.csv",
        "nox -s nothing",
        "nox -s bench -- oneshot nothing --data DATA",
        "nox -s bench -- obs --nothing",
        "pip install ziplm[nothing]",
        "nothing",
    ],
)
def test_a_command_that_does_not_work_is_noticed(wrong: str, world: Path) -> None:
    """Control of the test above."""
    result = run_script([wrong, "true"], world)
    assert result.returncode != 0


def run_script(commands: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands in a shell in which the programs of this repository are stood in for."""
    functions = "".join(
        f'{name}() {{ stand_in {name} "$@"; }}\n' for name in ("ziplm", "torchrun", "nox", "pip")
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    for pipe in ("requests", "answers"):
        (folder / pipe).unlink(missing_ok=True)
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "\n".join([PRELUDE, functions, *commands])],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )

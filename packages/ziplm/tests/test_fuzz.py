"""A small fuzz of every loader, and proof that the harness sees what it is there to see."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases are loaded in forked processes")


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the modules of the tests."""
    paths = [str(Path(__file__).parent), *sys.path]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_damaged_files_are_loaded_or_refused(tmp_path: Path) -> None:
    """Undamaged samples must load, as a control."""
    found = python("-m", "ziplm_fuzz", "--files", "150", "--seed", "0", cwd=tmp_path)
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
    loaded, refused = (int(cell) for cell in found.stdout.strip().splitlines()[-2].split("|")[2:4])
    assert min(loaded, refused) > 20


BAD_LOADERS = """
import ctypes, json, socket, sys, time
from pathlib import Path
from ziplm_fuzz import run
from ziplm_fuzz.loaders import Loader
from ziplm.errors import UsageError

def sample(folder):
    (folder / "a.json").write_text("[1]")

def fail(error):
    raise error

LOADS = {
    "loaded": lambda folder, output: (output / "b").write_text("x"),
    "control": lambda folder, output: fail(UsageError("a", "b")),
    "refused": lambda folder, output: (folder / "a.json").read_text() == "[1]" or fail(UsageError("a", "b")),
    "foreign": lambda folder, output: fail(KeyError("x")),
    "exit": lambda folder, output: fail(SystemExit(3)),
    "memory": lambda folder, output: bytearray(2**40),
    "message": lambda folder, output: fail(ValueError(f"{folder} a\\nb")),
    "other message": lambda folder, output: fail(ValueError("no file is named")),
    "busy": lambda folder, output: sum(1 for _ in iter(int, 1)),
    "waiting": lambda folder, output: time.sleep(100),
    "crash": lambda folder, output: ctypes.string_at(0),
    "outside": lambda folder, output: (folder / "../../escaped").write_text("x"),
    "own folder": lambda folder, output: (folder / "b").write_text("x"),
    "removed": lambda folder, output: (folder / "a.json").unlink(missing_ok=True),
    "connection": lambda folder, output: socket.create_connection(("127.0.0.1", 9)),
    "pickle": lambda folder, output: __import__("pickle").loads(b"cbuiltins\\nlen\\n."),
}
run.LOADERS.clear()
run.LOADERS.update({
    name: Loader(sample, ("a.json",), load, (UsageError, ValueError)) for name, load in LOADS.items()
})
run.CPU_SECONDS, run.SECONDS = 1.0, 3.0
results = [
    *run.fuzz(0, 1, Path(sys.argv[1]), list(set(LOADS) - {"control"}), number=0),
    *run.fuzz(0, 1, Path(sys.argv[1]), ["control"], number=-1),
]
print(json.dumps({result.case.loader: [result.outcome, result.failed] for result in results}))
"""

EXPECTED = {
    "loaded": "loaded",
    "control": "control",
    "refused": "refused",
    "foreign": "foreign",
    "exit": "foreign",
    "memory": "foreign",
    "message": "message",
    "other message": "foreign",
    "busy": "hang",
    "waiting": "hang",
    "crash": "crash",
    "outside": "outside",
    "own folder": "outside",
    "removed": "outside",
    "connection": "outside",
    "pickle": "outside",
}


def test_the_harness_sees_every_kind_of_failure(tmp_path: Path) -> None:
    found = python("-c", BAD_LOADERS, str(tmp_path / "kept"), cwd=tmp_path)
    outcomes = json.loads(found.stdout.splitlines()[-1])
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == EXPECTED
    failed = {name for name, (_, failed) in outcomes.items() if failed}
    assert failed == EXPECTED.keys() - {"loaded", "refused"}
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {f"{name}-0-{-1 if name == 'control' else 0}".replace(" ", "-") for name in failed}

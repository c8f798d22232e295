"""Help pages, errors, completion and status appear at once: they import nothing that takes seconds to import.

The limit on CPU time is 0.5 s, and 1 s where other processes share the cores, which slows everything down.
Each test prints the time that its command took.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import ziplm
from ziplm.cli import COMMANDS
from ziplm_compressed import options_for, write_files

SLOW = ("torch", "transformers", "sklearn", "datasets", "scipy")
SECONDS, SECONDS_UNDER_LOAD = 0.5, 1.0
COMMAND = "from ziplm.cli import main; main(prog_name='ziplm')"
NOTE_IMPORTS = f"""
import atexit, json, pathlib, sys
file, argv = pathlib.Path(sys.argv.pop()), sys.argv
atexit.register(lambda: file.write_text(json.dumps([name for name in {SLOW} if name in sys.modules])))
"""


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    stdout: str
    stderr: str
    slow: list[str]
    """The slow packages that it has imported."""
    seconds: float
    """CPU time, of the user and the system."""


def run(code: str, folder: Path, *arguments: object, **environment: str) -> Ended:
    """Run Python code in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-c", NOTE_IMPORTS + code, *map(str, arguments), str(folder / "imported.json")],
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    slow = json.loads((folder / "imported.json").read_text())
    return Ended(ended.returncode, ended.stdout, ended.stderr, slow, seconds)


def assert_quick(ended: Ended) -> None:
    busy = os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    print(f"{ended.seconds:.2f} s of CPU time{' on a busy machine' if busy else ''}")
    assert ended.slow == []
    assert ended.seconds <= (SECONDS_UNDER_LOAD if busy else SECONDS)


def test_the_packages_that_a_process_imports_are_seen(tmp_path: Path) -> None:
    """Control of all tests in this file."""
    assert run("import scipy, torch", tmp_path).slow == ["torch", "scipy"]


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        ("--help", 0, "Make a fine-tuned transformer faster"),
        ("--version", 0, ziplm.__version__),
        ("presets", 0, "bert-base-glue"),
        ("presets --json", 0, "bert-base-glue"),
        *((f"{command} --help", 0, f"Usage: ziplm {command}") for command in COMMANDS),
        ("compress --speeedup 2", 2, "No such option"),
        ("compress m --regime fast", 2, "is not one of"),
        ("nosuch", 2, "no such command 'nosuch'"),
    ],
)
def test_help_pages_presets_and_errors_of_syntax_appear_at_once(
    tmp_path: Path, arguments: str, code: int, shown: str
) -> None:
    ended = run(COMMAND, tmp_path, *arguments.split())
    assert ended.code == code
    assert shown in (ended.stderr if code else ended.stdout)
    assert_quick(ended)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compress", "m", "--speedup", "2"], "task is missing"),
        (["compress", "m", "--task", "sst2", "-o", "o", "--speedup", "1"], "a speedup of 1; ask for more"),
        (["compress", "--config", "nothing.toml"], "cannot read nothing.toml"),
    ],
    ids=["missing", "out of range", "no file"],
)
def test_errors_in_the_values_of_options_appear_at_once(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    ended = run(COMMAND, tmp_path, *arguments)
    assert ended.code == 2
    assert ended.stderr.startswith(f"Error: {message}")
    assert_quick(ended)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ziplm comp", ["plain,compress", "plain,compare"]),
        ("ziplm compress --spee", ["plain,--speedup"]),
        ("ziplm compress m --regime gen", ["plain,generate"]),
        ("ziplm evaluate --tas", ["plain,--task", "plain,--task-option"]),
        ("ziplm nosuch --x", []),
        ("ziplm nosuch", []),
    ],
)
def test_completion_is_silent_and_quick(tmp_path: Path, words: str, found: list[str]) -> None:
    typed = {"_ZIPLM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ended = run(COMMAND, tmp_path, **typed)
    assert ended.stdout.split() == found
    assert ended.stderr == ""
    assert_quick(ended)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ziplm.Family:
    files = write_files(tmp_path_factory.mktemp("files"))
    return ziplm.compress(**options_for(files, "bert", files / "run", speedup=[2]))


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["table", "json"])
def test_status_appears_at_once(made: ziplm.Family, tmp_path: Path, more: tuple[str, ...]) -> None:
    ended = run(COMMAND, tmp_path, "status", made[0].folder.parent, *more)
    assert ended.code == 0, ended.stderr
    assert "target 2x" in ended.stdout
    assert_quick(ended)


def test_importing_ziplm_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    assert_quick(run("import ziplm; print(ziplm.__version__, dir(ziplm))", tmp_path))
    assert_quick(run("from ziplm import Options, UsageError; Options(speedup=2)", tmp_path))


LOAD = """
import ziplm
assert "transformers" not in sys.modules
{imports}
model = {loaded}.from_pretrained(argv[1], trust_remote_code=False)
print(type(model).__name__, model.config.model_type)
"""


@pytest.mark.parametrize(
    ("imports", "loaded"),
    [
        (
            "from transformers import AutoModelForSequenceClassification",
            "AutoModelForSequenceClassification",
        ),
        ("import transformers", "transformers.AutoModelForSequenceClassification"),
        (
            "from transformers.models.auto.modeling_auto import AutoModelForSequenceClassification",
            "AutoModelForSequenceClassification",
        ),
    ],
    ids=["name", "package", "module"],
)
def test_transformers_imported_after_ziplm_loads_members(
    made: ziplm.Family, tmp_path: Path, imports: str, loaded: str
) -> None:
    ended = run(LOAD.format(imports=imports, loaded=loaded), tmp_path, made[0].folder)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.split() == ["ZipBertForSequenceClassification", "zip_bert"]


def test_transformers_imported_before_ziplm_loads_members(made: ziplm.Family, tmp_path: Path) -> None:
    code = (
        "from transformers import AutoModelForSequenceClassification as Auto\nAuto\nimport ziplm\n"
        "print(type(Auto.from_pretrained(argv[1], trust_remote_code=False)).__name__)"
    )
    ended = run(code, tmp_path, made[0].folder)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.split() == ["ZipBertForSequenceClassification"]

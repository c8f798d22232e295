"""Runs the commands of the documentation in seconds, in place of ziplm, torchrun, nox and pip.

A command of ziplm is run as it is written, except for what takes hours, a GPU or a network: the device is the
CPU, runs are short and use a made-up latency table, and nothing is uploaded. Commands that cannot be run here
are checked instead: sessions of nox and their arguments, and what pip installs.

A shell writes commands to one pipe and reads exit codes from another (see test_commands.py). Each command
runs in a fork of this process, which has imported torch and transformers once for all of them.
"""

import os
import re
import runpy
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import ziplm.api  # noqa: F401  # imported before the forks, which share it
from ziplm.cli import main as ziplm_main
from ziplm.cli.compress import compress

ROOT = Path(__file__).parents[1]
SHORT = {
    "compress": {
        "--calibration-samples": "16",
        "--search-samples": "8",
        "--evaluations": "2",
        "--profile-seconds": "0.5",
        "--measure-seconds": "0.2",
        "--threads": "1",
    },
    "profile": {"--profile-seconds": "0.5", "--threads": "1"},
    "benchmark": {"--max-seconds": "0.2"},
    "finetune": {"--steps": "1", "--batch-size": "8"},
}
SHORT_TRAINING = {"--steps-per-target": "1", "--dense-steps": "1", "--train-batch-size": "8"}
REPLACED = {
    "--device": "cpu",
    "--calibration-samples": "16",
    "--steps-per-target": "1",
    "--train-minutes": "0.01",
    "--latency-table": "linear.json",
}
"""Values of options that the documentation gives, and that take long, or a GPU, or a model of a real size."""
OTHERS = {"nox", "torch", "onnxruntime", "tokenizers", "numpy"}
"""Packages of others that the documentation installs."""


def ziplm_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments that stand for those of a command of ziplm."""
    name, *rest = arguments
    if name == "demo":  # run by `nox -s demo`
        return [*arguments, "--help"]
    for index, word in enumerate(rest[:-1]):
        rest[index + 1] = REPLACED.get(word, rest[index + 1])
    added = dict(SHORT.get(name, {}))
    if name == "compress":
        added["--latency-table"] = "linear.json"
        if "--preset" in rest or "--mode" in rest:
            added |= SHORT_TRAINING
        if any(word.startswith("bert-") for word in rest[1:]):  # a preset with fourteen targets
            added["--speedup"] = "2"
            rest = without_most_targets(rest)
    if name == "push":
        rest = [*rest, *([] if "--dry-run" in rest else ["--dry-run"])]
    words = [word for option, value in added.items() if option not in rest for word in (option, value)]
    return [name, *rest, *words]


def without_most_targets(arguments: list[str]) -> list[str]:
    """Return the arguments with the first two speedups only."""
    places = [index for index, word in enumerate(arguments) if word == "--speedup"][2:]
    dropped = {index + more for index in places for more in (0, 1)}
    return [word for index, word in enumerate(arguments) if index not in dropped]


def run_ziplm(arguments: list[str]) -> None:
    """Run a command of ziplm; this process ends with its exit code."""
    ziplm_main(ziplm_arguments(arguments), prog_name="ziplm")


def run_torchrun(arguments: list[str]) -> None:
    """Run a program in two processes on this machine; this process ends with its exit code."""
    at = next(index for index, word in enumerate(arguments) if word == "-m" or word.endswith(".py"))
    program = arguments[at:]
    if program[:2] == ["-m", "ziplm"]:
        program = ["-m", "ziplm", *ziplm_arguments(program[2:])]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        *program,
    ]
    sys.exit(subprocess.run(command, check=False).returncode)


def check_nox(arguments: list[str]) -> None:
    """Check that nox has this session, and for a benchmark that the script takes these arguments."""
    if not arguments:
        return
    assert arguments[0] == "-s", arguments
    assert arguments[2:3] in ([], ["--"]), arguments
    session, own = arguments[1], arguments[3:]
    defined = re.findall(
        r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert session in defined, f"nox has no session {session}"
    if session == "bench" and own:
        script = ROOT / "bench" / f"{own[0]}.py"
        source = "".join(each.read_text(encoding="utf-8") for each in (ROOT / "bench").glob("*.py"))
        passed_on = {option for each in compress.params for option in each.opts}  # by bench/runs.py
        unknown = [
            word
            for word in own
            if word.startswith("--") and f'"{word}"' not in source and word not in passed_on
        ]
        assert not unknown, f"{script.name} has no {unknown}"
        sys.path.insert(0, str(script.parent))
        sys.argv = [str(script), *own[1:], "--help"]  # checks the arguments before it
        runpy.run_path(str(script), run_name="__main__")


def check_pip(arguments: list[str]) -> None:
    """Check that what is installed exists: packages of this repository, their extras, and known others."""
    assert arguments[0] == "install", arguments
    words = arguments[1:]
    if "--index-url" in words:
        at = words.index("--index-url")
        del words[at : at + 2]
    for word in words:
        name, _, extras = word.partition("[")
        if name in OTHERS:
            continue
        text = (ROOT / "packages" / Path(name).name / "pyproject.toml").read_text(encoding="utf-8")
        metadata = tomllib.loads(text)["project"]
        unknown = (
            set(filter(None, extras.rstrip("]").split(",")))
            - metadata.get("optional-dependencies", {}).keys()
        )
        assert not unknown, f"{name} has no extra {unknown}"


PROGRAMS = {"ziplm": run_ziplm, "torchrun": run_torchrun, "nox": check_nox, "pip": check_pip}


def serve(requests: Path, answers: Path) -> None:
    """Run one command after the other, each in a fork; a request is its words, each with a zero byte."""
    while True:
        program, *arguments = requests.read_bytes().decode().split("\0")[:-1]
        child = os.fork()
        if not child:
            try:
                PROGRAMS[program](arguments)
                os._exit(0)
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code if isinstance(end.code, int) else 0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers.write_text(f"{code if code >= 0 else 1}\n")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))

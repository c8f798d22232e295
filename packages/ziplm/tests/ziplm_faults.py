"""Runs, commands in processes of their own, and comparisons of run folders, for all tests of faults."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latency_profiler import LatencyTable
from ziplm_compressed import command_line, options_for, without_times, write_files
from ziplm_gradual import gradual_options
from ziplm_killed import CONTEXT

SEED = 17
KINDS = ("oneshot", "gradual", "engine")
"""Runs that meet faults: one-shot, gradual, and one-shot with exports to ONNX Runtime in int8."""


def write_fault_files(folder: Path) -> Path:
    """Write models, data and latency tables for all kinds of runs; return the folder."""
    write_files(folder)
    (folder / "gradual").mkdir()
    gradual_options(folder / "gradual")
    table = LatencyTable.load(folder / "latency.json")
    # In this table, int8 alone makes the dense model twice as fast.
    environment = replace(table.environment, details={"quantized speedup": 2.0})
    LatencyTable(environment, table.fixed, table.curves).save(folder / "int8.json")
    return folder


def fault_options(files: Path, kind: str, output: Path) -> dict[str, Any]:
    """Return options of `compress` for a kind of run, which measures nothing: results can be compared."""
    if kind == "gradual":
        folder = files / "gradual"
        return {
            **options_for(folder, "bert", output, speedup=[1.5, 2.5]),
            "model": str(folder / "dense"),
            "validation_file": str(folder / "validation.csv"),
            "mode": "gradual",
            "evaluations": 3,
            "steps_per_target": 4,
            "dense_steps": 2,
            "train_batch_size": 8,
            "dropout": False,
        }
    if kind == "engine":
        engine = {"engine": "onnxruntime", "quantize": "int8", "latency_table": str(files / "int8.json")}
        return options_for(files, "bert", output, speedup=[3], **engine)
    return options_for(files, "bert", output, speedup=[1.5, 3])


def quiet_line(options: dict[str, Any]) -> list[str]:
    """Return the arguments of `ziplm` that make the run, without its progress."""
    return [*command_line(options), "--quiet"]


class Command:
    """A `ziplm` command in a process of its own.

    Args:
        line: the arguments of `ziplm`.
        before: called in that process first, once everything is imported.
        arguments: its arguments.
    """

    def __init__(self, line: list[str], before: Callable[..., None] | None = None, *arguments: Any) -> None:
        self._errors, writing = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_call, args=(line, writing, before, arguments))
        self._process.start()
        writing.close()

    @property
    def code(self) -> int | None:
        """The exit code, negative for signals; None while the command is running."""
        return self._process.exitcode

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self._process.kill()

    def wait(self) -> tuple[int | None, str]:
        """Return the exit code, None after more than 10 minutes, and what was printed to stderr."""
        printed = ""
        with suppress(EOFError):  # it was killed
            printed = self._errors.recv() if self._errors.poll(600) else ""
        self._process.join(10)
        code = self.code
        self._process.kill()
        self._process.join()
        return code, printed


def _call(
    line: list[str], writing: Any, before: Callable[..., None] | None, arguments: tuple[Any, ...]
) -> None:
    import torch
    import ziplm.api  # noqa: F401  # imported before limits apply
    from click.testing import CliRunner
    from transformers.utils.logging import disable_progress_bar
    from ziplm.cli import main

    disable_progress_bar()  # as the command line does, if it is the first to import transformers
    torch.set_num_threads(1)
    if before is not None:
        before(*arguments)
    result = CliRunner().invoke(main, line)
    writing.send(result.stderr)
    os._exit(result.exit_code)


def limit_files(size: int) -> None:
    """Let every write beyond this many bytes of a file fail."""
    import resource
    import signal

    import onnxruntime  # noqa: F401  # some libraries write files when they are imported

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


needs_permissions = pytest.mark.skipif(
    sys.platform == "win32" or (os.geteuid() == 0 and sys.platform != "linux"),
    reason="here, permissions of folders do not bind this user",
)


def give_up_permissions() -> None:
    """Let root be bound by permissions like any other user, in this process; only Linux can do so."""
    if os.geteuid() == 0:
        import ctypes

        version_and_process = (ctypes.c_uint32 * 2)(0x20080522, 0)
        no_capabilities = (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_and_process, no_capabilities) == 0


def names_in(folder: Path) -> list[str]:
    """Return all names in a run folder; only the command line writes a report page."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return sorted(names - {"report.html"})


def assert_same_run(found: Path, whole: Path) -> None:
    """Assert that two runs have the same files, weights, exported files and reports, except for times."""
    assert names_in(found) == names_in(whole)
    targets = [path.parent.name for path in whole.glob("*/metrics.json")]
    assert targets
    for target in targets:
        reports = [json.loads((run / target / "metrics.json").read_text()) for run in (found, whole)]
        for report in reports:
            report.get("training", {}).pop("seconds", None)
        assert without_times(reports[0]) == without_times(reports[1])
        for file in (whole / target).rglob("model*.*"):
            same = found / file.relative_to(whole)
            assert same.read_bytes() == file.read_bytes(), same

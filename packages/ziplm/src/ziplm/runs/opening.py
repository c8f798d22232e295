"""Opening a run folder: recognise it, lock it, and check that it belongs to the same run."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any

import filelock

from ziplm.errors import BadRun, one_line
from ziplm.files import read_json, write_json
from ziplm.options.options import LIMITS, SPEEDS, Options
from ziplm.options.toml import load_options, save_options
from ziplm.runs.folder import Run
from ziplm.runs.log import Logged
from ziplm.runs.progress import Reporter
from ziplm.runs.workers import ALONE, Workers

FORMAT = 2
"""Format number of the run folders that this version writes. Folders of version 0.1 carry no number."""

LEFTOVER = re.compile(r"\..+\.([0-9a-f]{32}|[a-z0-9_]{8}|\d+)(\.\w+)?")
"""Temporary names of files and folders, here and in the packages that write into a run folder."""


@contextmanager
def open_run(
    options: Options, workers: Workers = ALONE, reporter: Reporter | None = None, command: str = ""
) -> Iterator[Run]:
    """Open the run folder for one process, or for the processes of one torchrun; create it if necessary.

    Raises:
        BadRun: if the folder is in use, holds something else, or was made with other options or by version
            0.1.
    """
    run = Run(options.output, workers, reporter, command=command)
    with ExitStack() as held:
        workers.first(lambda: _take(run, options, held))
        if workers.rank == 0:
            held.enter_context(_logged(run))
        yield run
        workers.wait()


@contextmanager
def _logged(run: Run) -> Iterator[None]:
    """Log the command, everything that is reported, and the error that ends the run, if there is one."""
    logged = run.reporter = Logged(run.reporter, run.log_file, run.now_file)
    logged.log(f"ziplm {version('ziplm')}: {run.command}")
    try:
        yield
    except BaseException as error:
        logged.log(f"stopped by {type(error).__name__}: {one_line(error)}")
        raise


def _take(run: Run, options: Options, held: ExitStack) -> None:
    """Lock the folder for as long as the stack is open, and check that it belongs to this run."""
    if run.folder.exists() and not run.folder.is_dir():
        raise BadRun(f"{run.folder} is not a folder", "choose another --output")
    if run.folder.is_dir() and not run.options_file.exists() and not _is_ours(run):
        raise BadRun(f"{run.folder} holds something else", "choose a new or empty folder for --output")
    require_resumable(run)
    run.state.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(run.state / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BadRun(
            f"another process works in {run.folder}", "wait for it, or choose another --output"
        ) from None
    held.callback(lock.release)
    run.now_file.unlink(missing_ok=True)  # of a process that was killed
    _remove_leftovers(run)
    if not run.marker_file.exists():
        write_json(run.marker_file, {"format": FORMAT, "ziplm": version("ziplm")})
    _keep_options(run, options)


def require_resumable(run: Run) -> None:
    """Raise BadRun if the folder holds a run in a format that this version reads but cannot resume."""
    if run.marker_file.exists():
        found = read_json(run.marker_file).get("format")
        if found != FORMAT:
            raise BadRun(
                f"{run.folder} is a run of format {found}, and this version resumes format {FORMAT}",
                "choose another --output, or install the version that made it",
            )
    elif run.options_file.exists():
        raise BadRun(
            f"{run.folder} was made by ziplm 0.1 and cannot be resumed",
            "choose another --output; `ziplm status` and `ziplm evaluate` still read it",
        )


def _is_ours(run: Run) -> bool:
    """Return whether the folder is empty, or left by a run that was killed before it saved its options."""
    ours = ("state", run.marker_file.name)
    return all(path.name in ours or LEFTOVER.fullmatch(path.name) for path in run.folder.iterdir())


def _remove_leftovers(run: Run) -> None:
    """Delete the partial files of killed processes; they have temporary names, and may be large."""
    for path in (*run.folder.glob(".*"), *run.inputs_folder.glob(".*"), *run.state.rglob(".*")):
        if LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def has_results(run: Run) -> bool:
    """Return whether the run has results; a command that failed early leaves only its options."""
    return run.latency_file.exists() or any(
        path.name not in ("lock", run.now_file.name) for path in run.state.glob("*")
    )


def require_same(run: Run, options: Options) -> Options | None:
    """Return the options that the run was made with, None for a new run.

    Raises:
        BadRun: if they differ in a way that changes results.
    """
    if not (run.options_file.exists() and has_results(run)):
        return None
    before = load_options(run.options_file)
    if differences := options.differences(before):
        raise BadRun(
            f"{run.folder} was made with other options: {', '.join(differences)}",
            "repeat those, or choose another --output",
        )
    return before


def _keep_options(run: Run, options: Options) -> None:
    """Save the options; targets that earlier commands finished stay among them."""
    before = require_same(run, options)
    # Limits of size apply to every speed: with other limits, the targets of two commands do not combine.
    if before is not None and all(getattr(before, name) == getattr(options, name) for name in LIMITS):
        done = [target for target in before.targets() if run.is_done(target.name)]
        targets: Any = {
            name: tuple(dict.fromkeys((*(t.value for t in done if t.kind == kind), *getattr(options, name))))
            for name, kind in SPEEDS.items()
        }
        options = options.model_copy(update=targets)
    save_options(options, run.options_file)

"""Opening a run folder: recognise it, lock it, and check that it belongs to the same run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import Any

from ziplm.errors import BadRun, UsageError, one_line
from ziplm.options.options import LIMITS, SPEEDS, Options
from ziplm.options.paths import with_absolute_paths
from ziplm.options.toml import load_options, save_options
from ziplm.runs.contents import has_results, remove_leftovers, require_own_contents
from ziplm.runs.folder import Run
from ziplm.runs.log import Logged
from ziplm.runs.marker import claim, has_marker, require_usable
from ziplm.runs.progress import Reporter
from ziplm.runs.workers import ALONE, Workers


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
    run.lock = claim(run.folder, held)
    require_own_contents(run, [target.name for target in options.targets()])
    remove_leftovers(run)
    run.now_file.unlink(missing_ok=True)  # of a process that was killed
    save_options(with_absolute_paths(with_finished_targets(run, options)), run.options_file)


def require_resumable(run: Run, options: Options) -> None:
    """Raise BadRun, and touch nothing, if a command with these options cannot use the run folder."""
    require_usable(run.folder)
    if has_marker(run.folder):
        require_own_contents(run, [target.name for target in options.targets()])
        require_same(run, options)


def require_same(run: Run, options: Options) -> Options | None:
    """Return the options that the run was made with, None for a new run.

    Raises:
        BadRun: if they differ in a way that changes results.
    """
    if not (run.options_file.exists() and has_results(run)):
        return None
    before = read_run_options(run)
    if differences := with_absolute_paths(options).differences(before):
        raise BadRun(
            f"{run.folder} was made with other options: {', '.join(differences)}",
            "repeat those, or choose another --output",
        )
    return before


def read_run_options(run: Run) -> Options:
    """Read the options of a run; raise BadRun if their file is damaged."""
    try:
        return load_options(run.options_file)
    except UsageError as error:
        raise BadRun(
            f"{run.options_file} is damaged: {error.message}", "restore it, or choose another --output"
        ) from error


def with_finished_targets(run: Run, options: Options) -> Options:
    """Return the options with the targets that earlier commands finished, which stay in the run.

    Raises:
        BadRun: if the run was made with other options.
    """
    before = require_same(run, options)
    # Limits of size apply to every speed: with other limits, the targets of two commands do not combine.
    if before is None or any(getattr(before, name) != getattr(options, name) for name in LIMITS):
        return options
    done = [target for target in before.targets() if run.is_done(target.name)]
    targets: Any = {
        name: tuple(dict.fromkeys((*(t.value for t in done if t.kind == kind), *getattr(options, name))))
        for name, kind in SPEEDS.items()
    }
    return options.model_copy(update=targets)

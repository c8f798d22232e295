"""The run folder: what was asked, what is done, and what it took. A killed run goes on where it was.

config.toml            what was asked, resolved
latency.json           the latency table
2x/, 4x/, …            one checkpoint for each target, with metrics.json
state/                 what stages leave behind: loss metric, traces, priors, searches; not needed later
"""

import dataclasses
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import filelock

from ziplm.config import LIMITS, SPEEDS, Config
from ziplm.errors import BadRun
from ziplm.files import read_json, write_json
from ziplm.targets import targets_of
from ziplm.workers import ALONE, Workers

LEFTOVER = re.compile(r"\..+\.([0-9a-f]{32}|[a-z0-9_]{8}|\d+)(\.\w+)?")
"""Temporary names of files and folders, here and in the packages that write into a run."""


class Run:
    """Paths within a run folder, the seconds that its stages took, and who works in it."""

    def __init__(self, folder: str | Path, workers: Workers = ALONE) -> None:
        self.folder, self.workers = Path(folder), workers
        self.state = self.folder / "state"
        self.config_file = self.folder / "config.toml"
        self.latency_file = self.folder / "latency.json"
        self.metric_file = self.state / "metric.safetensors"
        self.dense_file = self.state / "dense.json"
        self._seconds_file = self.state / "seconds.json"

    def trace_file(self, module: str) -> Path:
        """The trace of a module, written after its priors: it is there when both are."""
        return self.state / "traces" / f"{module}.safetensors"

    def priors_file(self, module: str) -> Path:
        """The priors of a module."""
        return self.state / "priors" / f"{module}.safetensors"

    def target_state(self, target: str) -> Path:
        """Where the stages of one target keep what they found."""
        return self.state / "targets" / target

    def result_folder(self, target: str) -> Path:
        """The checkpoint of one target; it appears whole."""
        return self.folder / target

    def is_done(self, target: str) -> bool:
        """Whether a target is finished."""
        return (self.result_folder(target) / "metrics.json").is_file()

    def metrics(self, target: str) -> dict[str, Any]:
        """metrics.json of a finished target."""
        metrics = read_json(self.result_folder(target) / "metrics.json")
        assert isinstance(metrics, dict)
        return metrics

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far."""
        return read_json(self._seconds_file) if self._seconds_file.exists() else {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add what the block takes to a stage's seconds."""
        start = time.perf_counter()
        yield
        if self.workers.rank > 0:
            return
        spent = {**self.seconds, stage: self.seconds.get(stage, 0.0) + time.perf_counter() - start}
        write_json(self._seconds_file, {name: round(value, 3) for name, value in spent.items()})


@contextmanager
def open_run(config: Config, workers: Workers = ALONE) -> Iterator[Run]:
    """The folder of a run, for one process at a time, or those of one torchrun; made if it is not there.

    Raises:
        BadRun: if another process works in it, or if it was made with other options.
    """
    run = Run(config.output, workers)
    with ExitStack() as held:
        workers.first(lambda: _take(run, config, held))
        yield run
        workers.wait()


def _take(run: Run, config: Config, held: ExitStack) -> None:
    """Lock the folder for as long as the stack is open, and see that it is this run's."""
    if run.folder.exists() and not run.folder.is_dir():
        raise BadRun(f"{run.folder} is not a folder", "choose another --output")
    if run.folder.is_dir() and not run.config_file.exists() and not _is_ours(run):
        raise BadRun(f"{run.folder} holds something else", "choose a new or empty folder for --output")
    run.state.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(run.state / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BadRun(
            f"another process works in {run.folder}", "wait for it, or choose another --output"
        ) from None
    held.callback(lock.release)
    _remove_leftovers(run)
    _keep_config(run, config)


def _is_ours(run: Run) -> bool:
    """Whether a folder without a config is empty, or was left by a run killed before it had one."""
    return all(path.name == "state" or LEFTOVER.fullmatch(path.name) for path in run.folder.iterdir())


def _remove_leftovers(run: Run) -> None:
    """Delete what killed processes had not finished to write: it has temporary names, and may be large."""
    for path in (*run.folder.glob(".*"), *run.state.rglob(".*")):
        if LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _has_begun(run: Run) -> bool:
    """Whether there is anything that other options would not have made. A first command may have failed."""
    return run.latency_file.exists() or any(path.name != "lock" for path in run.state.glob("*"))


def require_same(run: Run, config: Config) -> Config | None:
    """The options that the run was made with before, if it was; BadRun if they differ."""
    if not (run.config_file.exists() and _has_begun(run)):
        return None
    before = Config.load(run.config_file)
    if differences := config.differences(before):
        raise BadRun(
            f"{run.folder} was made with other options: {', '.join(differences)}",
            "repeat those, or choose another --output",
        )
    return before


def _keep_config(run: Run, config: Config) -> None:
    """Save the options, or see that they are those of before; finished targets stay among them."""
    before = require_same(run, config)
    # Limits of size go with every speed: where they differ, targets of two commands do not make one.
    if before is not None and all(getattr(before, name) == getattr(config, name) for name in LIMITS):
        done = [target for target in targets_of(before) if run.is_done(target.name)]
        targets: Any = {
            name: tuple(dict.fromkeys((*(t.value for t in done if t.kind == kind), *getattr(config, name))))
            for name, kind in SPEEDS.items()
        }
        config = dataclasses.replace(config, **targets)
    config.save(run.config_file)

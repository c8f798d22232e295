"""The run folder: the paths of its files, the time its stages took, and stored results.

ziplm-run.json         marks the folder as a run, with its format number
config.toml            the options of the run
fingerprints.json      hashes of the model and the data that the run was started with
run.log                everything that was shown, with times
latency.json           the latency table
2x/, 4x/, …            one checkpoint for each target, with metrics.json
inputs/                a model and data that were given in memory
dense/, family.json    gradual runs: the fine-tuned dense model; the family's total training and time
state/                 intermediate results, to resume from: fisher, traces, priors, searches, trainings
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ziplm.files import checked, is_number, read_json, read_tensors, write_json, write_tensors
from ziplm.runs.forecast import Forecast, Position
from ziplm.runs.marker import require_still_own
from ziplm.runs.progress import Advance, FullReporter, Reporter, Silent
from ziplm.runs.workers import ALONE, Workers


class Format(NamedTuple):
    """How a kind of result is written to a file and read back."""

    write: Callable[[Path, Any], None]
    read: Callable[[Path], Any]


JSON = Format(write_json, read_json)
TENSORS = Format(write_tensors, read_tensors)


class Run:
    """A run folder, and the processes and the reporter that work with it.

    Args:
        folder: the run folder.
        workers: the processes that share the run.
        reporter: receives progress.
        state: folder of the intermediate results; None for the run's own. Targets of gradual runs have one
            each.
        command: the command or the call that the run was started with.
    """

    def __init__(
        self,
        folder: str | Path,
        workers: Workers = ALONE,
        reporter: Reporter | None = None,
        state: Path | None = None,
        command: str = "",
    ) -> None:
        self.folder, self.workers, self.command = Path(folder), workers, command
        self.reporter: Reporter = reporter or Silent()
        self.state = state or self.folder / "state"
        self.options_file = self.folder / "config.toml"
        self.latency_file = self.folder / "latency.json"
        self.family_file = self.folder / "family.json"
        self.fingerprints_file = self.folder / "fingerprints.json"
        self.inputs_folder = self.folder / "inputs"
        self.dense_folder = self.folder / "dense"
        self.dense_metrics_file = self.folder / "state" / "dense-metrics.json"
        self.dense_predictions_file = self.folder / "state" / "dense-predictions.safetensors"
        self.fisher_file = self.state / "fisher.safetensors"
        self.log_file = self.folder / "run.log"
        self.now_file = self.folder / "state" / "now.json"
        self._seconds_file = self.folder / "state" / "seconds.json"
        self.lock: int | None = None  # descriptor of the marker, in the process that has locked the folder
        self._cpu_seconds_file = self.folder / "state" / "cpu-seconds.json"
        self.forecast: Forecast | None = None
        self._known: set[Path] = set()  # stored results that this process has made or mentioned

    def for_target(self, target: str, previous: str) -> "Run":
        """Return the same run with separate intermediate results, for one target of a gradual run.

        They depend on the member that the target starts from, `previous`.
        """
        state = self.folder / "state" / "steps" / f"{target}-from-{previous}"
        run = Run(self.folder, self.workers, self.reporter, state, self.command)
        run.lock, run._known, run.forecast = self.lock, self._known, self.forecast
        return run

    def trace_file(self, branch: str) -> Path:
        """Return the file of a branch's trace, which is written after the branch's priors."""
        return self.state / "traces" / f"{branch}.safetensors"

    def width_file(self, branch: str, rows: str) -> Path:
        """Return the file of the trace that makes an attention's "values" or "scores" narrower."""
        return self.state / "traces" / "widths" / f"{branch}.{rows}.safetensors"

    def priors_file(self, branch: str) -> Path:
        """Return the file of a branch's priors."""
        return self.state / "priors" / f"{branch}.safetensors"

    def target_state(self, target: str) -> Path:
        """Return the folder of one target's intermediate results."""
        return self.state / "targets" / target

    def unneeded_folders(self) -> list[Path]:
        """Return the folders in the state of finished targets that were needed until the member was saved.

        They hold exported files and the checkpoints of trainings, also of attempts that were not chosen.
        """
        places = [self.folder / "state" / "targets", *self.folder.glob("state/steps/*/targets")]
        finished = [state for place in places for state in place.glob("*") if self.is_done(state.name)]
        names = ("exported", "training/checkpoint-*")
        found = [path for state in finished for name in names for path in state.rglob(name)]
        return [path for path in found if path.is_dir()]

    def member_folder(self, target: str) -> Path:
        """Return the checkpoint folder of one target; it appears when it is complete."""
        return self.folder / target

    def is_done(self, target: str) -> bool:
        """Return whether a target is finished."""
        return self.report_file(target).is_file()

    def report_file(self, target: str) -> Path:
        """Return the file of a finished target's report."""
        return self.member_folder(target) / "metrics.json"

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that each stage has taken so far."""
        return self._read_seconds(self._seconds_file)

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """CPU time that each stage has taken so far in the first process, all threads added up."""
        return self._read_seconds(self._cpu_seconds_file)

    def _read_seconds(self, path: Path) -> dict[str, float]:
        return checked(path, _as_seconds, read_json(path)) if path.exists() else {}

    @contextmanager
    def stage(self, name: str, description: str | None = None) -> Iterator[Advance]:
        """Report the progress of a stage, and add the time of the block to the stage's seconds."""
        if self.forecast is not None and isinstance(self.reporter, FullReporter):
            self.reporter.overall = Position(self.forecast, name)
        with self.timed(name), self.reporter.stage(description or name) as advance:
            yield advance

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage's seconds, without showing anything."""
        start, cpu_start = time.perf_counter(), time.process_time()
        yield
        if self.workers.rank > 0:
            return
        spent = time.perf_counter() - start
        _add_seconds(self._seconds_file, self.seconds, stage, spent)
        _add_seconds(self._cpu_seconds_file, self.cpu_seconds, stage, time.process_time() - cpu_start)
        if self.forecast is not None:
            self.forecast.finish(stage, spent)

    def begin_target(self, name: str, text: str) -> None:
        """Note that a target begins."""
        if self.forecast is not None:
            self.forecast.begin_target(name)
        self.reporter.note(text)

    def detail(self, text: str) -> None:
        """Report one line about what a stage did; it is logged, and shown by reporters that show details."""
        if isinstance(self.reporter, FullReporter):
            self.reporter.detail(text)

    def stored(
        self,
        path: Path,
        make: Callable[[], Any],
        format: Format = JSON,  # noqa: A002
        parse: Callable[[Any], Any] = lambda document: document,
    ) -> Any:
        """Return the result in a file; if the file is missing, make the result and write it first.

        All processes call `make`, the first one writes, and all read. What is returned has always passed
        through the file, so that a resumed run continues with the same values as an uninterrupted one.

        Args:
            path: the file.
            make: makes the result.
            format: how it is written and read.
            parse: turns what is read into what is returned, and raises an error such as ValueError, KeyError
                or TypeError if it cannot be what was written.

        Raises:
            BadRun: if the file is damaged, or if the folder was deleted or replaced in the meantime.
        """
        if self.workers.missing(path):
            made = make()
            self.workers.first(lambda: self._write(path, made, format))
        elif path not in self._known:
            self.reporter.note(f"reusing {path.relative_to(self.folder)}")
        self._known.add(path)
        return checked(path, parse, format.read(path))

    def _write(self, path: Path, made: Any, form: Format) -> None:
        if self.lock is not None:
            require_still_own(self.lock, self.folder)
        form.write(path, made)


def _as_seconds(document: Any) -> dict[str, float]:
    if not all(is_number(value) and value >= 0 for value in document.values()):
        raise ValueError("seconds are positive numbers")
    return dict(document)


def _add_seconds(path: Path, before: dict[str, float], stage: str, seconds: float) -> None:
    """Write the seconds of all stages, with those of one stage added."""
    spent = {**before, stage: before.get(stage, 0.0) + seconds}
    write_json(path, {name: round(value, 3) for name, value in spent.items()})

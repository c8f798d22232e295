"""The status of a run: which parts are finished, and how long the stages took."""

import os
import socket
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ziplm.errors import BadRun
from ziplm.files import checked, is_number, read_json
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.runs.folder import Run
from ziplm.runs.forecast import duration
from ziplm.runs.marker import has_marker
from ziplm.runs.opening import read_run_options

FISHER = "fisher"
TRACES = "traces of branches"
KINDS = {"stage": str, "pid": int, "host": str, "since": str}
"""Types of what is known about a running stage."""


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        folder: the run folder.
        model: the dense model.
        task: the task.
        targets: all targets, finished or not.
        done: whether each part is finished, by description.
        traces: number of branches that are pruned.
        seconds: time that each stage has taken so far.
        resumable: whether this version can resume the run.
        now: the stage that is running ("stage", "pid", "host", "since"), and about how many seconds the run
            still takes ("seconds_left"; None if that is not known); None if no stage is running.
    """

    folder: str
    model: str
    task: str
    targets: tuple[Target, ...]
    done: dict[str, bool]
    traces: int
    seconds: dict[str, float]
    resumable: bool
    now: dict[str, Any] | None

    def __str__(self) -> str:
        lines = [f"{self.model} for {self.task} in {self.folder}"]
        if not self.resumable:
            lines.append("made by ziplm 0.1: it can be read, but not resumed")
        remarks = {FISHER: " (from gradients of the loss)", TRACES: f" ({self.traces} so far)"}
        lines += [
            f"  {'done' if done else 'to do':5}  {part}{remarks.get(part, '')}"
            for part, done in self.done.items()
        ]
        if self.now is not None:
            lines.append(
                f"running now: {self.now['stage']}, process {self.now['pid']} on {self.now['host']}, "
                f"since {self.now['since']}"
            )
            if self.now["seconds_left"] is not None:
                lines.append(f"about {duration(self.now['seconds_left'])} left")
        if self.seconds:
            spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.seconds.items())
            lines.append(f"so far: {spent}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "targets": [target.name for target in self.targets]}


def read_status(run: Run) -> Status:
    """Read the status of a run; raise BadRun if the folder holds none."""
    if not run.options_file.is_file():
        raise BadRun(f"{run.folder} is not a run folder", "give the --output of ziplm compress")
    options = read_run_options(run)
    targets = tuple(options.targets())
    done = _parts_done(run, options) | {f"target {t.name}": run.is_done(t.name) for t in targets}
    return Status(
        folder=str(run.folder),
        model=options.model,
        task=options.task,
        targets=targets,
        done=done,
        traces=len(list((run.state / "traces").glob("*.safetensors"))),
        seconds=run.seconds,
        resumable=has_marker(run.folder),
        now=_running_stage(run),
    )


def _running_stage(run: Run) -> dict[str, Any] | None:
    """Read which stage is running; None if none is, or if its process on this machine was killed."""
    if not run.now_file.exists():
        return None
    now = checked(run.now_file, _as_stage, read_json(run.now_file))
    if now["host"] == socket.gethostname() and not _is_alive(now["pid"]):
        return None
    return {name: now[name] for name in KINDS} | {"seconds_left": _seconds_left(now)}


def _seconds_left(now: dict[str, Any]) -> float | None:
    """Return the seconds that a run still takes; a stage that takes longer than planned has nothing left."""
    if "later_seconds" not in now:
        return None
    spent = (datetime.now().astimezone() - datetime.fromisoformat(now["since"])).total_seconds()
    return float(now["later_seconds"] + max(0.0, now["stage_seconds"] - max(0.0, spent)))


def _as_stage(document: Any) -> dict[str, Any]:
    if not all(type(document[name]) is kind for name, kind in KINDS.items()) or document["pid"] <= 0:
        raise ValueError("not the stage of a process")
    times = [document[name] for name in ("stage_seconds", "later_seconds") if name in document]
    if len(times) == 1 or not all(is_number(value) and value >= 0 for value in times):
        raise ValueError("seconds are positive numbers")
    if times and datetime.fromisoformat(document["since"]).tzinfo is None:
        raise ValueError("not a time with its zone")
    return dict(document)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # there is no process of that number
        return False
    except PermissionError:  # it belongs to somebody else
        return True
    return True


def _parts_done(run: Run, options: Options) -> dict[str, bool]:
    """Return which of the parts before the targets are finished, by description."""
    done = {"latency table": run.latency_file.exists()}
    if options.trains_dense:
        done["dense model"] = (run.dense_folder / "config.json").exists()
    if options.mode != "gradual":  # in gradual runs, each target has its own
        fisher = run.fisher_file.exists() or (run.state / "metric.safetensors").exists()  # its name in 0.1
        searching = (run.state / "targets").exists()  # the first search starts when all traces exist
        done[FISHER] = fisher or not options.gradients
        done[TRACES] = searching
    return done

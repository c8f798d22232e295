"""What a report shows of a run, read from the run folder.

Nothing is computed and no model is loaded, so that reports are quick and do not need torch. Members of older
versions lack some values, and those of newer ones may have more, so most values are optional here.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latency_profiler import LatencyTable

from ziplm.errors import BadRun, UsageError, one_line
from ziplm.files import believed, read_json
from ziplm.results.family import DENSE_TRAINING
from ziplm.results.plain import finite, mapping
from ziplm.results.reports import ALTERNATIVES, read_alternatives, read_report, read_training
from ziplm.results.scaling import speedup_of
from ziplm.runs.folder import Run
from ziplm.runs.table import read_run_table

Report = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    """A run as its report shows it.

    Attributes:
        label: name of the run, which is that of its folder.
        folder: the run folder.
        reports: metrics.json of each finished member, the slowest first.
        options: the options of the run by name; empty if they cannot be read.
        latency: the latency table; None if there is none.
        searches: losses of the evaluated candidates by target, in order. Infinite ones are left out.
        dense_training: summary of the training of the dense model; None if the run has not trained it.
        alternatives: contents of `ALTERNATIVES`.
    """

    label: str
    folder: Path
    reports: tuple[Report, ...]
    options: dict[str, Any]
    latency: LatencyTable | None
    searches: dict[str, list[float]]
    dense_training: dict[str, Any] | None
    alternatives: tuple[dict[str, Any], ...]

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.reports[0]["metric"]["name"])

    @property
    def model(self) -> str:
        """Name of the dense model: its name on the hub, or the last part of its path."""
        return short_model_name(str(self.options.get("model") or "model"))

    @property
    def environment(self) -> dict[str, Any]:
        """The environment of the measurements, by name."""
        return mapping(self.reports[0].get("environment"))


def read_run(folder: Path) -> RunData:
    """Read a run with at least one finished target.

    Raises:
        BadRun: if no target of the run is finished, or if a file is damaged.
    """
    run = Run(folder)
    dense = run.dense_folder / DENSE_TRAINING
    return RunData(
        label=folder.resolve().name,
        folder=folder,
        reports=tuple(read_reports(folder)),
        options=_read_options(run.options_file),
        latency=read_run_table(run.latency_file) if run.latency_file.is_file() else None,
        searches=_read_searches(run),
        dense_training=read_training(dense) if dense.is_file() else None,
        alternatives=read_alternatives(folder / ALTERNATIVES),
    )


def read_runs(folders: Sequence[Path]) -> list[RunData]:
    """Read several runs; those with the same name are labelled with their paths."""
    runs = [read_run(folder) for folder in folders]
    labels = [run.label for run in runs]
    return [replace(run, label=str(run.folder)) if labels.count(run.label) > 1 else run for run in runs]


def require_different(folders: Sequence[Path]) -> None:
    """Raise UsageError if a run is given twice."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("a run is given twice", "give each run once")


def read_reports(folder: Path) -> list[Report]:
    """Read metrics.json of all finished targets, the slowest first; raise BadRun if there is none."""
    files = [path for path in folder.glob("*/metrics.json") if not path.parent.name.startswith(".")]
    reports = [read_report(path) for path in files]
    if not reports:
        raise BadRun(f"{folder} has no finished target", "finish one with ziplm compress first")
    return sorted(reports, key=speedup_of)


def _read_options(path: Path) -> dict[str, Any]:
    """Read the options of a run as they are, so that those of other versions can be shown as well."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # not UTF-8, or not TOML
        raise BadRun(f"{path} is damaged: {one_line(error)}", "restore it") from error


def _read_searches(run: Run) -> dict[str, list[float]]:
    """Read the losses of every search whose state is still there."""
    searches = {}
    for path in sorted(run.state.glob("**/search.json")):
        with believed(path):
            losses = finite(loss for _, loss, *_ in read_json(path)["evaluations"])
        if losses:
            searches[path.parent.name] = losses
    return searches


def is_local_path(model: str) -> bool:
    """Return whether a dense model is named by a folder rather than by its name on the hub."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", model) is None or Path(model).exists()


def short_model_name(model: str) -> str:
    """Return the name of a dense model: its name on the hub, or the last part of its path."""
    return Path(model).name if is_local_path(model) else model

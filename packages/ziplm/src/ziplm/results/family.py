"""The family: the finished members of a run, and the training and time that they took."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

from ziplm.options.targets import Target
from ziplm.results.reports import (
    ALTERNATIVES,
    read_alternatives,
    read_family_report,
    read_report,
    read_training,
)
from ziplm.runs.folder import Run

DENSE_TRAINING = "training.json"
"""File in the dense model's folder with the summary of its training, if it was trained in the run."""


@dataclass(frozen=True)
class Member:
    """One finished target of a run.

    Attributes:
        target: name of the target, such as ``2x``.
        folder: the checkpoint, for `ziplm.load` or transformers.
        metrics: the report of the member, which is the contents of metrics.json.
    """

    target: str
    folder: Path
    metrics: dict[str, Any]

    @property
    def sizes(self) -> dict[str, list[int | list[int]]]:
        """Size of each layer's branches, by kind: remaining heads for "attention", columns for "ffn".

        If heads may be narrower than in the dense model, it is a list of their number and their width.
        """
        sizes: dict[str, list[int | list[int]]] = self.metrics["sizes"]
        return sizes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "folder": str(self.folder)}

    def __repr__(self) -> str:
        metric = self.metrics["metric"]
        speed = (self.metrics["measured"] or self.metrics["predicted"])["speedup"]
        return f"Member({self.target!r}, {speed:.2f}x, {metric['name']} {metric['compressed']:.4g})"


@dataclass(frozen=True, repr=False)
class Family(Sequence[Member]):
    """A sequence of the members that a run has made, in the order of their targets.

    Attributes:
        members: the members.
        alternatives: what else could be done to the dense model, measured in the same run if that was asked
            for; see `ziplm.results.reports.read_alternatives`.
    """

    members: tuple[Member, ...]
    alternatives: tuple[dict[str, Any], ...] = ()

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> "Family": ...
    def __getitem__(self, index: int | slice) -> "Member | Family":
        if isinstance(index, slice):
            return Family(self.members[index], self.alternatives)
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __repr__(self) -> str:
        return f"Family({', '.join(map(repr, self.members))})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        members = [member.to_dict() for member in self.members]
        return {"members": members, "alternatives": list(self.alternatives)}


def read_family(run: Run, targets: Sequence[Target]) -> Family:
    """Read the finished targets of a run."""
    members = tuple(
        Member(target.name, run.member_folder(target.name), read_report(run.report_file(target.name)))
        for target in targets
        if run.is_done(target.name)
    )
    return Family(members, read_alternatives(run.folder / ALTERNATIVES))


def family_report(run: Run, targets: Sequence[Target]) -> dict[str, Any]:
    """Add up the epochs, steps and examples of all trainings, and the hours of all stages.

    The training of the dense model is included.
    """
    reports = [read_report(run.report_file(target.name)) for target in targets]
    trainings = [report.get("training") or {} for report in reports]
    dense = run.dense_folder / DENSE_TRAINING
    if dense.is_file():
        trainings.insert(0, read_training(dense))
    # Each report holds the seconds of the run up to then. The run's own count continues for targets that were
    # added later, but is lost if the state is deleted. Both only grow, so the largest is the right one.
    seconds = [math.fsum(spent.values()) for spent in (run.seconds, *(r["seconds"] for r in reports))]
    return {
        "targets": [target.name for target in targets],
        "trainings": len(trainings),
        "epochs": math.fsum(training.get("epochs", 0.0) for training in trainings),
        "steps": sum(training.get("steps", 0) for training in trainings),
        "examples": sum(training.get("examples", 0) for training in trainings),
        "hours": max(seconds) / 3600,
    }


def family_text(folder: Path) -> str | None:
    """Describe the training and time of a gradual run; None if it is not gradual or not finished."""
    path = Run(folder).family_file
    if not path.is_file():
        return None
    report = read_family_report(path)
    return (
        f"the whole family took {report['epochs']:.3g} epochs of fine-tuning ({report['steps']:,} steps, "
        f"{report['examples']:,} examples) and {report['hours']:.2g} hours"
    )

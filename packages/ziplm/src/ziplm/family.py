"""What a gradual run took for the whole family, the dense model's training included."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ziplm.files import read_json
from ziplm.run import Run
from ziplm.targets import Target

FAMILY_FILE = "family.json"
DENSE_TRAINING = "training.json"
"""In the dense model's folder: what its training took, if it was trained in the run."""


def family_report(run: Run, targets: Sequence[Target]) -> dict[str, Any]:
    """Epochs, steps and examples of all trainings, and hours of all stages, as plain values."""
    reports = [run.metrics(target.name) for target in targets]
    trainings = [report.get("training") or {} for report in reports]
    dense = run.folder / "dense" / DENSE_TRAINING
    if dense.is_file():
        trainings.insert(0, read_json(dense))
    # Each target knows the seconds up to its end. The run's own count has those of targets that were added
    # in between as well, but may have been deleted with the state.
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
    """The same as a sentence; None if the run in a folder is not gradual, or not finished."""
    path = folder / FAMILY_FILE
    if not path.is_file():
        return None
    report = read_json(path)
    return (
        f"the whole family took {report['epochs']:.3g} epochs of fine-tuning ({report['steps']:,} steps, "
        f"{report['examples']:,} examples) and {report['hours']:.2g} hours"
    )

"""A gradual run that is killed again and again ends as one that was not."""

import json
import random
import signal
from pathlib import Path
from typing import Any

from ziplm_gradual import gradual_options
from ziplm_killed import run_to_point

KILLS = 10
TIMES = ("seconds", "bytes_on_disk", "command")  # the second: metrics.json has a size itself
WATCHED = {"write_text", "serialize_file", "save", "replace", "rmtree", "training_step", "__call__"}


def report_of(folder: Path) -> dict[str, Any]:
    """metrics.json without what is timed."""
    found = json.loads((folder / "metrics.json").read_text())
    training = {name: value for name, value in found["training"].items() if name != "seconds"}
    return {**{name: value for name, value in found.items() if name not in TIMES}, "training": training}


def files_of(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def test_killed_at_ten_random_points_it_ends_the_same(tmp_path: Path) -> None:
    options = {**gradual_options(tmp_path), "dense_steps": 2}
    whole, killed, notes = tmp_path / "whole", tmp_path / "killed", tmp_path / "notes.json"
    assert run_to_point({**options, "output": str(whole)}, 0, notes) == 0
    passed = json.loads(notes.read_text())
    assert set(passed) >= WATCHED

    # Points of the whole run; each process goes on from the one before, so it gets as far as the difference.
    # What it does again on its way (steps since a checkpoint) makes it fall behind a little.
    points = sorted(random.Random(134).sample(range(1, len(passed) + 1), KILLS))
    told = [(point, passed[point - 1]) for point in points]
    for before, point in zip([0, *points], points, strict=False):
        code = run_to_point({**options, "output": str(killed)}, point - before, notes)
        assert code == -signal.SIGKILL, (point, told)
    assert run_to_point({**options, "output": str(killed)}, 0, notes) == 0

    for target in ("1.5x", "2.5x"):
        assert report_of(killed / target) == report_of(whole / target), told
        for name in ("model.safetensors", "config.json"):
            assert (killed / target / name).read_bytes() == (whole / target / name).read_bytes(), told
    families = [json.loads((run / "family.json").read_text()) for run in (killed, whole)]
    assert families[0].pop("hours") > 0
    assert families[1].pop("hours") > 0
    assert families[0] == families[1]
    assert files_of(killed) == files_of(whole), told  # nothing half-written is left

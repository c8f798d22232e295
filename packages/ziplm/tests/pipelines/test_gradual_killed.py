"""A run with training that is killed again and again ends like one that is not."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from ziplm_gradual import gradual_options
from ziplm_killed import run_to_point

KILLS = 10
TIMES = (
    "seconds",
    "cpu_seconds",
    "bytes_on_disk",
    "command",
)  # the size on disk includes metrics.json with its times
WATCHED = {"stage", "progress", "write", "rename", "remove", "tokenizer", "step"}


def report_in(folder: Path) -> dict[str, Any]:
    """Read metrics.json without times."""
    found = json.loads((folder / "metrics.json").read_text())
    training = {name: value for name, value in found["training"].items() if name != "seconds"}
    return {**{name: value for name, value in found.items() if name not in TIMES}, "training": training}


def files_in(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


@pytest.mark.parametrize("mode", ["gradual", "finetune"])
def test_a_run_killed_at_ten_random_points_ends_with_the_same_files(tmp_path: Path, mode: str) -> None:
    options = {**gradual_options(tmp_path), "dense_steps": 2, "mode": mode}
    whole, killed, notes = tmp_path / "whole", tmp_path / "killed", tmp_path / "notes.json"
    assert run_to_point({**options, "output": str(whole)}, 0, notes) == 0
    passed = json.loads(notes.read_text())
    assert set(passed) >= WATCHED

    # The points are events of the whole run. A process resumes from the one before, so that it passes as many
    # events as lie between two points; work that it repeats, such as steps since a checkpoint, leaves it a
    # little behind.
    points = sorted(random.Random(134).sample(range(1, len(passed) + 1), KILLS))
    places = [(point, passed[point - 1]) for point in points]
    for before, point in zip([0, *points], points, strict=False):
        code = run_to_point({**options, "output": str(killed)}, point - before, notes)
        assert code == -signal.SIGKILL, (point, places)
    assert run_to_point({**options, "output": str(killed)}, 0, notes) == 0

    for target in ("1.5x", "2.5x"):
        assert report_in(killed / target) == report_in(whole / target), places
        for name in ("model.safetensors", "config.json"):
            assert (killed / target / name).read_bytes() == (whole / target / name).read_bytes(), places
    families = [json.loads((run / "family.json").read_text()) for run in (killed, whole)]
    assert families[0].pop("hours") > 0
    assert families[1].pop("hours") > 0
    assert families[0] == families[1]
    assert files_in(killed) == files_in(whole), places  # no partial file is left

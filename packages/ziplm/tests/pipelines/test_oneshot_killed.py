"""A one-shot run that is killed in every stage ends like one that is not."""

import json
import signal
from pathlib import Path

import pytest
from ziplm_compressed import options_for, without_times
from ziplm_killed import Kill, run

# Each process resumes from what the last one left.
KILLS = [
    Kill("descriptor", ""),  # before the marker has its contents
    Kill("write", "config.toml"),  # before there are options
    Kill("progress", "calibrate: gradients", 2),
    Kill("write", "state/fisher.safetensors"),
    Kill("progress", "calibrate: inputs", 2),
    Kill("write", "state/traces/*", 3),  # after the priors of the third branch
    Kill("stage", "calibrate: inputs"),
    Kill("rename", "state/traces/*", 2),
    Kill("stage", "search"),
    Kill("progress", "search", 1),
    Kill("progress", "search", 2),  # resumed from the search's own checkpoint
    Kill("rename", "state/targets/1.5x/found.json"),
    Kill("stage", "refit"),
    Kill("progress", "refit", 1),
    Kill("progress", "evaluate 1.5x: validation"),
    Kill("write", "1.5x/model.safetensors"),
    Kill("tokenizer", "1.5x"),  # the checkpoint has its weights only
    Kill("write", "1.5x/metrics.json"),
    Kill("stage", "search"),  # of the second target
    Kill("rename", "3x"),
]


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_a_run_killed_in_every_stage_ends_with_the_same_files(
    files: Path, architecture: str, tmp_path: Path
) -> None:
    options = options_for(files, architecture, tmp_path / "killed", speedup=[1.5, 3])
    for kill in KILLS:
        assert run(options, kill) == -signal.SIGKILL, kill
    assert run(options) == 0
    assert run({**options, "output": str(tmp_path / "whole")}) == 0
    for target in ("1.5x", "3x"):
        reports = [
            json.loads((tmp_path / name / target / "metrics.json").read_text())
            for name in ("killed", "whole")
        ]
        assert without_times(reports[0]) == without_times(reports[1])
        weights = [
            (tmp_path / name / target / "model.safetensors").read_bytes() for name in ("killed", "whole")
        ]
        assert weights[0] == weights[1]
    names = [
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("killed", "whole")
    ]
    assert names[0] == names[1]  # no partial file is left

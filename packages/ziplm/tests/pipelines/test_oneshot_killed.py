"""One-shot compression, killed in every stage."""

import json
import signal
from pathlib import Path

import pytest
from ziplm_compressed import options_for, without_times, write_files
from ziplm_killed import run as run_apart

# Where a run is killed, one after the other: each process goes on from what the last one left.
KILLS = [
    ("ziplm.files:os.fsync", 1),  # before there is a config
    ("ziplm.heads:Head.score", 2),  # in the gradients; made to fit the task below
    ("ziplm.gather_fisher:Fisher.save", 1),
    ("ziplm.calibrate:StreamSums.add", 9),  # in the inputs
    ("obs_structured:Trace.save", 3),  # between two traces, after the priors of the third
    ("ziplm.pipeline:gather_inputs", 1),
    ("obs_structured:Trace.save", 2),
    ("ziplm.stitch:Evaluator.__call__", 3),  # in the search
    ("ziplm.stitch:Evaluator.__call__", 6),
    ("ziplm.files:os.fsync", 3),  # while a result is written
    ("ziplm.member:refit", 1),
    ("ziplm.pipeline:Pipeline.evaluate", 1),
    ("transformers:PreTrainedTokenizerBase.save_pretrained", 1),  # a checkpoint that is half there
    ("ziplm.member:size_on_disk", 1),
    ("ziplm.member:Member._search", 1),  # of the second target
    ("ziplm.member:size_on_disk", 1),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_killed_in_every_stage_it_ends_the_same(files: Path, family: str, tmp_path: Path) -> None:
    options = options_for(files, family, tmp_path / "killed", speedup=[1.5, 3])
    head = "Classification" if family == "bert" else "LanguageModel"
    for place, (killer, call) in enumerate(KILLS):
        killed = run_apart(options, killer.replace("Head.", f"{head}."), call)
        assert killed == -signal.SIGKILL, (place, killer)
    assert run_apart(options) == 0
    whole = {**options, "output": str(tmp_path / "whole")}
    assert run_apart(whole) == 0
    for target in ("1.5x", "3x"):
        reports = [
            json.loads((tmp_path / run / target / "metrics.json").read_text()) for run in ("killed", "whole")
        ]
        assert without_times(reports[0]) == without_times(reports[1])
        weights = [
            (tmp_path / run / target / "model.safetensors").read_bytes() for run in ("killed", "whole")
        ]
        assert weights[0] == weights[1]
    names = [
        sorted(str(p.relative_to(tmp_path / run)) for p in (tmp_path / run).rglob("*"))
        for run in ("killed", "whole")
    ]
    assert names[0] == names[1]  # nothing half-written is left

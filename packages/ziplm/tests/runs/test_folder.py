"""A run folder stores each result once, and counts the seconds of the stages."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ziplm import BadRun
from ziplm.runs.folder import JSON, TENSORS, Format, Run


def refuse() -> Any:
    raise AssertionError("the result is stored already")


def test_a_result_is_made_once_and_returned_as_it_is_read(tmp_path: Path) -> None:
    """Tuples become lists, in the first call as in all others."""
    run, path = Run(tmp_path), tmp_path / "state" / "found.json"
    calls = 0

    def make() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {"levels": (1, 2)}

    assert run.stored(path, make) == {"levels": [1, 2]}
    assert calls == 1
    assert path.is_file()
    assert run.stored(path, refuse) == {"levels": [1, 2]}
    assert Run(tmp_path).stored(path, refuse) == {"levels": [1, 2]}


def test_a_result_in_a_file_is_read_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text('{"levels": [3]}')
    assert Run(tmp_path).stored(path, refuse) == {"levels": [3]}


def test_tensors_are_stored_in_their_own_format(tmp_path: Path) -> None:
    run, path = Run(tmp_path), tmp_path / "priors.safetensors"
    made = {"own": torch.arange(6.0).reshape(2, 3).mT}
    for make in (lambda: made, refuse):
        stored = run.stored(path, make, TENSORS)
        assert list(stored) == ["own"]
        assert torch.equal(stored["own"], made["own"])
        assert stored["own"] is not made["own"]


def test_a_result_that_cannot_be_made_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> Any:
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        Run(tmp_path).stored(tmp_path / "state" / "found.json", fail)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "form", "made"),
    [("found.json", JSON, {"levels": [1]}), ("priors.safetensors", TENSORS, {"own": torch.ones(9)})],
    ids=["json", "tensors"],
)
def test_a_damaged_result_is_named(tmp_path: Path, name: str, form: Format, made: Any) -> None:
    run, path = Run(tmp_path), tmp_path / name
    run.stored(path, lambda: made, form)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadRun, match=f"{name} is damaged; delete it and run the command again"):
        run.stored(path, refuse, form)
    path.unlink()
    run.stored(path, lambda: made, form)
    assert path.read_bytes() == data


def test_a_step_has_its_own_results_and_the_same_members(tmp_path: Path) -> None:
    run = Run(tmp_path)
    step = run.for_target("3x", "2x")
    assert step.state == tmp_path / "state/steps/3x-from-2x"
    assert step.trace_file("layer0.ffn") != run.trace_file("layer0.ffn")
    assert step.fisher_file != run.fisher_file
    assert step.member_folder("3x") == run.member_folder("3x")
    assert step.dense_metrics_file == run.dense_metrics_file
    with step.stage("prune"):
        pass
    assert list(run.seconds) == ["prune"]


def test_seconds_of_stages_add_up(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.seconds == {}
    for _ in range(2):
        with run.stage("search"):
            pass
    first = run.seconds["search"]
    with run.stage("prune"):
        pass
    assert list(run.seconds) == ["search", "prune"]
    assert run.seconds["search"] == first >= 0


def test_cpu_seconds_count_work_and_not_waiting(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.stage("search"):
        time.sleep(0.2)
    assert run.seconds["search"] >= 0.2
    assert run.cpu_seconds["search"] < 0.1
    with run.stage("prune"):
        begin = time.process_time()
        while time.process_time() - begin < 0.1:
            pass
    assert run.cpu_seconds["prune"] >= 0.1

"""`--alternatives` and the family's report are of all targets of a run, whichever commands made them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from transformers import PreTrainedModel
from ziplm.files import read_json, write_json
from ziplm.options.targets import Target
from ziplm.pipelines import alternatives, oneshot, training_steps
from ziplm.pipelines.oneshot import finish
from ziplm.pipelines.recover import Candidate
from ziplm.pipelines.values import Pruned, Start
from ziplm.stages import measure
from ziplm_clock import count_products
from ziplm_compressed import Recorder, options_for
from ziplm_gradual import gradual_options


@pytest.fixture
def options(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return options of a run that measures without noise."""
    return measured(options_for(files, "bert", tmp_path / "run", evaluations=0, refit=False), monkeypatch)


def measured(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    count_products(monkeypatch)
    own = {"clock": "cpu", "threads": 1, "attention": "eager", "profile_seconds": 1e-3}
    return {**options, **own, "latency_table": None, "measure_seconds": 1e-3}


def targets_in(folder: Path) -> list[str]:
    """Return the targets that the alternatives of a run were made for."""
    rows = read_json(folder / "alternatives.json")
    assert "every 2nd layer" in [row["name"] for row in rows]
    (targets,) = {tuple(row["targets"]) for row in rows}
    return list(targets)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def finish_only_the_first(start: Start, pruned: Pruned, target: Target, *more: Any) -> Candidate:
    if target.name != "1.2x":
        raise KeyboardInterrupt
    return finish(start, pruned, target, *more)


@pytest.mark.parametrize(
    ("module", "name", "instead", "made"),
    [
        (oneshot, "finish", finish_only_the_first, 1),
        (oneshot, "measure_alternatives", interrupt, 2),
        (alternatives, "compare_models", interrupt, 2),
    ],
    ids=["between members", "before", "while measuring"],
)
def test_alternatives_of_an_interrupted_run_are_made_for_all_targets(
    options: dict[str, Any], module: Any, name: str, instead: Any, made: int
) -> None:
    run = Path(options["output"])
    both = {**options, "speedup": [1.2, 1.5], "alternatives": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, instead)
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(**both)
    assert len(list(run.glob("*/metrics.json"))) == made
    family = ziplm.compress(**both)
    assert targets_in(run) == ["1.2x", "1.5x"]
    assert [row["name"] for row in family.alternatives] == [
        row["name"] for row in read_json(run / "alternatives.json")
    ]


def test_alternatives_may_be_asked_for_later_and_follow_the_targets(options: dict[str, Any]) -> None:
    run, recorder = Path(options["output"]), Recorder()
    ziplm.compress(**options, speedup=[1.2])
    assert not (run / "alternatives.json").exists()
    traces = {path: path.stat().st_mtime_ns for path in run.rglob("traces/*")}
    ziplm.compress(**options, speedup=[1.2], alternatives=True, progress=recorder)
    assert targets_in(run) == ["1.2x"]
    assert "alternatives: measure" in recorder.stages
    assert not {"calibrate: inputs", "prune", "search", "measure"} & set(recorder.stages)

    ziplm.compress(**options, speedup=[1.5])
    assert targets_in(run) == ["1.2x"]  # nobody has asked for others
    ziplm.compress(**options, speedup=[1.5], alternatives=True)
    assert targets_in(run) == ["1.2x", "1.5x"]
    assert traces == {path: path.stat().st_mtime_ns for path in traces}

    recorder = Recorder()
    ziplm.compress(**options, speedup=[1.2], alternatives=True, progress=recorder)
    assert recorder.stages == []  # nothing is missing
    assert targets_in(run) == ["1.2x", "1.5x"]


def test_alternatives_that_no_run_has_made_are_kept(options: dict[str, Any]) -> None:
    path = Path(options["output"]) / "alternatives.json"
    ziplm.compress(**options, speedup=[1.2])
    write_json(path, [{"name": "mine"}])
    family = ziplm.compress(**options, speedup=[1.2, 1.5], alternatives=True)
    assert read_json(path) == list(family.alternatives) == [{"name": "mine"}]


def test_alternatives_of_a_gradual_run_follow_the_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = measured(gradual_options(tmp_path), monkeypatch)
    options |= {"output": str(tmp_path / "run"), "alternatives": True, "refit": False}
    for speedups in ([1.2], [1.5]):
        ziplm.compress(**{**options, "speedup": speedups})
    assert targets_in(tmp_path / "run") == ["1.2x", "1.5x"]


def test_an_interrupted_run_still_reports_on_the_family(tmp_path: Path) -> None:
    options = {**gradual_options(tmp_path), "output": str(tmp_path / "run"), "mode": "finetune"}
    ziplm.compress(**{**options, "speedup": [1.5]})
    report = tmp_path / "run" / "family.json"
    assert read_json(report)["targets"] == ["1.5x"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_steps, "write_family_report", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(**options)
    recorder = Recorder()
    ziplm.compress(**{**options, "speedup": [2.5]}, progress=recorder)
    assert (read_json(report)["targets"], read_json(report)["trainings"]) == (["1.5x", "2.5x"], 2)
    assert recorder.stages == []


def test_measuring_in_half_precision_converts_no_model_that_is_evaluated(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_products(monkeypatch)
    evaluate, timed_call, evaluated = alternatives.evaluate, measure._timed_call, []
    timed: list[torch.dtype] = []

    def noted(start: Start, model: PreTrainedModel, *arguments: Any) -> Any:
        evaluated.append((start.dense.dtype, model.dtype))
        return evaluate(start, model, *arguments)

    def noted_time(model: PreTrainedModel, *arguments: Any) -> Any:
        timed.append(model.dtype)
        return timed_call(model, *arguments)

    monkeypatch.setattr(alternatives, "evaluate", noted)
    monkeypatch.setattr(measure, "_timed_call", noted_time)
    options = options_for(files, "bert", tmp_path / "run", speedup=1.2, alternatives=True, dtype="bfloat16")
    options |= {"latency_table": None, "clock": "cpu", "profile_seconds": 1e-3, "measure_seconds": 1e-3}
    ziplm.compress(**options)
    assert set(timed) == {torch.bfloat16}
    assert len(evaluated) > 1
    assert set(evaluated) == {(torch.float32, torch.float32)}

"""Intervals in the reports of a run, and the stored predictions of the dense model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import ziplm
from click.testing import CliRunner
from safetensors.numpy import load_file
from ziplm.cli import main
from ziplm_compressed import LENGTH, Recorder, options_for, without_times

PREDICTIONS = "state/dense-predictions.safetensors"


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def options(request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a compression, and return its options."""
    options = options_for(files, request.param, tmp_path_factory.mktemp("made") / "run", speedup=[2])
    ziplm.compress(**options)
    return options


def report_of(options: dict[str, Any], target: str = "2x") -> dict[str, Any]:
    report: dict[str, Any] = json.loads((Path(options["output"]) / target / "metrics.json").read_text())
    return report


def test_every_metric_of_a_report_has_an_interval(options: dict[str, Any]) -> None:
    report = report_of(options)
    assert list(report["intervals"]) == ["dense", "compressed", "difference"]
    for model in ("dense", "compressed"):
        for split, metrics in report["metrics"][model].items():
            intervals = report["intervals"][model][split]
            assert list(intervals) == list(metrics)
            for name, (low, high) in intervals.items():
                assert low <= metrics[name] <= high
                assert low < high
    metric = report["metric"]
    for model, name in (("dense", "dense_interval"), ("compressed", "interval")):
        assert metric[name] == report["intervals"][model]["validation"][metric["name"]]
    assert metric["difference_interval"] == report["intervals"]["difference"]["validation"][metric["name"]]
    low, high = metric["difference_interval"]
    assert low <= metric["compressed"] - metric["dense"] <= high


def test_the_dense_model_is_evaluated_once(options: dict[str, Any]) -> None:
    first, recorder = report_of(options), Recorder()
    ziplm.compress(**{**options, "speedup": [3]}, progress=recorder)
    assert any(stage.startswith("evaluate 3x") for stage in recorder.stages)
    assert not any(stage.startswith("evaluate dense") for stage in recorder.stages)
    second = report_of(options, "3x")
    assert second["intervals"]["dense"] == first["intervals"]["dense"]
    assert second["metrics"]["dense"] == first["metrics"]["dense"]


def test_predictions_that_were_deleted_are_made_again(options: dict[str, Any]) -> None:
    run = Path(options["output"])
    stored, report = load_file(run / PREDICTIONS), report_of(options)
    assert {key.partition("/")[0] for key in stored} == {"validation"}
    assert len({len(values) for values in stored.values()}) == 1
    (run / PREDICTIONS).unlink()
    shutil.rmtree(run / "2x")
    recorder = Recorder()
    ziplm.compress(**options, progress=recorder)
    assert any(stage.startswith("evaluate dense") for stage in recorder.stages)
    again = load_file(run / PREDICTIONS)
    assert stored.keys() == again.keys()
    assert all((again[key] == values).all() for key, values in stored.items())
    assert without_times(report_of(options)) == without_times(report)


def test_evaluate_prints_the_interval_beside_the_value(options: dict[str, Any]) -> None:
    arguments = ["evaluate", str(Path(options["output"]) / "2x"), "--task", options["task"]]
    arguments += ["--validation-file", options["validation_file"], "--max-length", str(LENGTH)]
    arguments += ["--batch-size", str(options["calibration_batch_size"])]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = report_of(options)
    for name, (low, high) in report["intervals"]["compressed"]["validation"].items():
        (line,) = (line for line in result.stdout.splitlines() if f" {name} " in line)
        assert f" {report['metrics']['compressed']['validation'][name]:.4f} " in line
        assert f" [{low:.4f}, {high:.4f}] " in line
    as_json = CliRunner().invoke(main, [*arguments, "--json"])
    assert json.loads(as_json.stdout) == report["metrics"]["compressed"]

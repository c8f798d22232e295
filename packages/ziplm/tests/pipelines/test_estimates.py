"""Estimates count what the stages do; a dry run says which clock they are of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latency_profiler import LatencyTable
from ziplm import Options
from ziplm.pipelines.common_steps import make_choices
from ziplm.pipelines.cost_model import FIT_ROUNDS, RACED, TRIED, CostModel
from ziplm.pipelines.estimates import Estimates
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.plan import plan, time_lines
from ziplm.pipelines.probe import probe
from ziplm.pipelines.units import padded_tokens
from ziplm.runs.folder import Run
from ziplm.runs.progress import Silent
from ziplm.stages.fit import ROUGH_ROUNDS
from ziplm.stages.measure import MIN_ROUNDS
from ziplm.tasks import make_task
from ziplm_compressed import options_for
from ziplm_estimates import UNIT, estimated, tokens
from ziplm_gradual import gradual_options


@pytest.fixture
def options(files: Path, tmp_path: Path) -> dict[str, Any]:
    return options_for(files, "bert", tmp_path / "run", speedup=[2.0])


def test_tokens_with_their_padding_are_counted(options: dict[str, Any]) -> None:
    found = estimated(options)
    assert found.once["calibrate"] == tokens(options, "calibration") * (2 + 3)
    stages = found.targets["2x"]
    candidate = 0.5  # half the size
    search, judging = tokens(options, "search"), tokens(options, "judging")
    assert options["evaluations"] == 5
    evaluated_in_full = 1 + (2 + 2 * TRIED) * RACED  # all but the first prior may be given up
    assert stages["search"] == pytest.approx(
        search * (evaluated_in_full * candidate + 1) + judging * (2 * candidate + 1)
    )
    fitted = tokens(options, "calibration")
    compared = tokens(options, "search", 8) + tokens(options, "judging", 8)
    assert stages["refit"] == pytest.approx(fitted * (1 + (3 + 2) / 2) + compared * (1 + 2 / 2))
    evaluated, judged = tokens(options, "evaluation"), tokens(options, "judging", 8)
    assert stages["evaluate"] == pytest.approx(evaluated * (0.5 + 1) + judged * 1.5)  # and the dense model
    assert stages["fit"] == stages["measure"] == 0  # with a latency table, nothing is measured
    assert found.total == pytest.approx(sum(found.by_stage().values()))


@pytest.mark.parametrize("batch_size", [1, 3, 32, 100])
def test_padding_is_that_of_the_batches(batch_size: int) -> None:
    lengths = [3, 9, 4, 4, 7, 1, 12]
    rows = [{"input_ids": [1] * length, "attention_mask": [1] * length} for length in lengths]
    task = make_task("classification")
    batches = [batch["input_ids"].numel() for _, batch in task.batches(rows, batch_size)]
    assert padded_tokens(rows, batch_size) == sum(batches)


def in_onnxruntime(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**options, "engine": "onnxruntime", "threads": 1, "clock": "cpu", **more}


def test_an_engine_adds_exports_and_evaluates_in_it(options: dict[str, Any]) -> None:
    """The dense model and every round of the fit are exported; so is the finished model, for evaluation."""
    served = replace(UNIT, export=100.0, served=0.2)
    (plain,) = estimated(options).targets.values()
    (found,) = estimated(in_onnxruntime(options), served).targets.values()
    assert found["export"] == 100
    assert "export" not in plain
    evaluated, judged = tokens(options, "evaluation"), tokens(options, "judging", 8)
    assert found["evaluate"] == pytest.approx(evaluated * (0.2 / 2 + 1) + judged * 1.5)
    assert list(found) == ["search", "fit", "refit", "export", "measure", "evaluate"]  # the order of a run


def test_each_round_of_a_fit_exports_and_measures_three_models(options: dict[str, Any]) -> None:
    asked = Options(**in_onnxruntime(options, measure_seconds=1e9))
    run = Run(asked.output)
    start = load_start(asked, run)
    choices = make_choices(start, start.dense, LatencyTable.load(options["latency_table"]))
    start = replace(start, options=Options(**{**in_onnxruntime(options), "latency_table": None}))
    times = replace(UNIT, export=100.0, served=0.5)  # eager torch is half as fast
    model = CostModel(start, run, choices, times)
    one_round = (1 + 1 / 2 + 2) * choices.dense_seconds  # dense, compressed, and dense in eager torch
    stages = model.target(asked.targets()[0])
    assert stages["measure"] == pytest.approx((2 * MIN_ROUNDS + 4) * one_round)
    assert stages["fit"] == pytest.approx(FIT_ROUNDS * (100 + (2 * ROUGH_ROUNDS + 4) * one_round))
    assert model.dense_export() == 100
    folder = run.folder / "state" / "engine" / "dense"
    folder.mkdir(parents=True)
    assert model.dense_export() == 0  # it is there already


def test_outputs_of_the_dense_model_are_computed_for_the_first_target(options: dict[str, Any]) -> None:
    found = estimated({**options, "speedup": [2.0, 2.5]}).targets
    candidates = {name: stages["search"] for name, stages in found.items()}
    once = tokens(options, "search") + tokens(options, "judging")
    assert candidates["2x"] - once == pytest.approx(2.5 / 2 * candidates["2.5x"])


def test_a_model_that_int8_makes_faster_is_larger_in_torch(options: dict[str, Any]) -> None:
    served = replace(UNIT, export=1.0, served=0.1)
    options = in_onnxruntime(options, quantize="int8", speedup=[4.0])
    (found,) = estimated(options, served, int8=2.0).targets.values()
    search, judging = tokens(options, "search"), tokens(options, "judging")
    in_full = 1 + (2 + 2 * TRIED) * RACED
    assert found["search"] == pytest.approx(
        search * (in_full * 0.5 + 1) + judging * (2 * 0.5 + 1)
    )  # not 0.25
    evaluated, judged = tokens(options, "evaluation"), tokens(options, "judging", 8)
    in_engine = 0.1 * 2 / 4  # the probe has timed the dense model in int8
    assert found["evaluate"] == pytest.approx(evaluated * (in_engine + 0.5 + 1) + judged * 1.5)
    (alone,) = estimated({**options, "speedup": [2.0]}, served, int8=2.0).targets.values()
    assert alone["refit"] == 0  # int8 alone is enough
    assert alone["search"] == pytest.approx(search * (1 + 2 * RACED + 1) + judging * (2 + 1))


def test_each_option_changes_the_stage_that_it_is_about(options: dict[str, Any]) -> None:
    plain = estimated(options).by_stage()

    def changed(**more: Any) -> set[str]:
        """Return the stages that change by more than a tenth: other samples have other lengths."""
        stages = estimated({**options, **more}).by_stage()
        return {stage for stage in plain if stages.get(stage) != pytest.approx(plain[stage], rel=0.1)}

    assert changed(evaluations=50) == {"search"}
    assert changed(refit=False) == {"refit"}
    assert changed(gradients=False) == {"calibrate"}
    assert changed(memory_gb=1e-9) == {"calibrate"}  # more passes
    assert changed(calibration_samples=20) == {"calibrate", "refit"}
    assert changed(speedup=[4.0]) == {"search", "refit", "evaluate"}


def test_finished_targets_and_stored_results_take_no_time(options: dict[str, Any]) -> None:
    state = Run(options["output"]).target_state("2x")
    state.mkdir(parents=True)
    (state / "found.json").write_text("{}")
    assert "search" not in estimated(options).targets["2x"]
    done = Path(options["output"]) / "2x" / "metrics.json"
    done.parent.mkdir()
    done.write_text("{}")
    found = estimated({**options, "speedup": [2.0, 4.0]})
    assert list(found.targets) == ["4x"]


def test_a_measurement_ends_at_its_limit_or_after_its_rounds(options: dict[str, Any]) -> None:
    asked = Options(**options)
    run = Run(asked.output)
    start = load_start(asked, run)
    choices = make_choices(start, start.dense, LatencyTable.load(options["latency_table"]))
    measuring = replace(start, options=Options(**{**options, "latency_table": None, "measure_seconds": 10.0}))
    one_round = 1.5 * choices.dense_seconds
    model = CostModel(measuring, run, choices, UNIT)
    assert model._measurement(2.0) == pytest.approx(min(2 * MIN_ROUNDS * one_round, 10) + 4 * one_round)
    busy = CostModel(measuring, run, choices, replace(UNIT, waiting=1e6))
    assert busy._measurement(2.0) == pytest.approx(1e-5 + 4 * one_round)  # the limit is in wall time


@pytest.mark.parametrize("mode", ["oneshot", "gradual"])
def test_the_probe_times_every_unit_and_leaves_the_model_as_it_is(tmp_path: Path, mode: str) -> None:
    asked = Options(**{**gradual_options(tmp_path), "output": str(tmp_path / "run"), "mode": mode})
    start = load_start(asked, Run(asked.output))
    before = {name: weight.clone() for name, weight in start.dense.state_dict().items()}
    found = probe(start)
    trained = mode == "gradual"
    assert min(found.forward, found.fisher, found.statistics, found.pruning, found.evaluation) > 0
    assert (found.export, found.served) == (0, 0)
    assert (found.training > 0, found.optimizer > 0) == (trained, trained)
    assert found.clock == "CPU time"
    assert not start.dense.training
    assert all(weight.equal(before[name]) for name, weight in start.dense.state_dict().items())
    assert all(parameter.grad is None for parameter in start.dense.parameters())


def test_a_dry_run_says_which_clock_its_estimates_are_of(options: dict[str, Any]) -> None:
    text = plan(Options(**options), Silent())
    assert "estimated CPU time of all threads:" in text
    assert "  search: " in text
    assert "  total: " in text
    assert not Path(options["output"]).exists()


def test_a_dry_run_says_that_the_rounds_of_a_fit_are_not_known_before() -> None:
    lines = time_lines(Estimates({}, {"2x": {"search": 5.0, "fit": 24.0}}, "CPU time", waiting=1.0))
    assert lines[1:3] == [
        "  search: 5 s",
        f"  fit: 24 s (if {FIT_ROUNDS:g} models are measured for each target; it can be one to three)",
    ]

"""Estimates count what the stages do; a dry run says which clock they are of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latency_profiler import LatencyTable
from ziplm import Options
from ziplm.pipelines.common_steps import make_choices
from ziplm.pipelines.estimates import Estimates, estimate
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.plan import plan
from ziplm.pipelines.probe import UnitTimes, probe
from ziplm.runs.folder import Run
from ziplm.runs.progress import Silent
from ziplm_compressed import options_for
from ziplm_gradual import gradual_options

UNIT = UnitTimes(1.0, 0.0, 2.0, 3.0, 1e-3, 3.0, 1e-6, waiting=1.0, clock="CPU time")


def estimated(options: dict[str, Any], times: UnitTimes = UNIT) -> Estimates:
    asked = Options(**options)
    run = Run(asked.output)
    start = load_start(asked, Run(f"{asked.output}-new"))  # the results in some tests are made up
    choices = make_choices(start, start.dense, LatencyTable.load(options["latency_table"]))
    return estimate(start, run, choices, asked.targets(), times)


@pytest.fixture
def options(files: Path, tmp_path: Path) -> dict[str, Any]:
    return options_for(files, "bert", tmp_path / "run", speedup=[2.0])


def test_passes_over_samples_are_counted(options: dict[str, Any]) -> None:
    """There are 40 calibration samples, 10 to search and 10 to judge, and 30 to evaluate."""
    found = estimated(options)
    assert found.once["calibrate"] == 40 * (2 + 3)
    stages = found.targets["2x"]
    candidate = 0.5  # half the size
    assert stages["search"] == pytest.approx(10 * (8 * candidate + 1) + 10 * (2 * candidate + 1))
    assert stages["refit"] == pytest.approx(40 * (1 + (3 + 2) / 2) + 20 * 2 * 1.5)
    assert stages["evaluate"] == pytest.approx(30 * 0.5 + 10 * 1.5 + 30)  # and the dense model
    assert stages["fit"] == stages["measure"] == 0  # with a latency table, nothing is measured
    assert found.total == pytest.approx(sum(found.by_stage().values()))


def test_each_option_changes_the_stage_that_it_is_about(options: dict[str, Any]) -> None:
    plain = estimated(options).by_stage()

    def changed(**more: Any) -> set[str]:
        stages = estimated({**options, **more}).by_stage()
        return {stage for stage in plain if stages.get(stage) != plain[stage]}

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
    from ziplm.pipelines.estimates import _Model

    asked = Options(**options)
    run = Run(asked.output)
    start = load_start(asked, run)
    choices = make_choices(start, start.dense, LatencyTable.load(options["latency_table"]))
    measuring = replace(start, options=Options(**{**options, "latency_table": None, "measure_seconds": 10.0}))
    one_round = 1.5 * choices.dense_seconds
    model = _Model(measuring, run, choices, UNIT)
    assert model._measurement(2.0) == pytest.approx(min(120 * one_round, 10) + 8 * one_round)
    busy = _Model(measuring, run, choices, replace(UNIT, waiting=1e6))
    assert busy._measurement(2.0) == pytest.approx(1e-5 + 8 * one_round)  # the limit is in wall time


def test_gradual_runs_prune_and_train_for_each_target(tmp_path: Path) -> None:
    found = estimated({**gradual_options(tmp_path), "output": str(tmp_path / "run")})
    first, second = found.targets.values()
    assert {"calibrate", "prune", "finetune"} <= set(first)
    assert first["calibrate"] == pytest.approx(1.5 * second["calibrate"])  # it starts from the 1.5x member
    assert first["finetune"] > 4 * 8 * (3 / 1.5 + 1)  # four steps of eight examples, teacher, optimizer


@pytest.mark.parametrize("mode", ["oneshot", "gradual"])
def test_the_probe_times_every_unit_and_leaves_the_model_as_it_is(tmp_path: Path, mode: str) -> None:
    asked = Options(**{**gradual_options(tmp_path), "output": str(tmp_path / "run"), "mode": mode})
    start = load_start(asked, Run(asked.output))
    before = {name: weight.clone() for name, weight in start.dense.state_dict().items()}
    found = probe(start)
    trained = mode == "gradual"
    assert min(found.forward, found.fisher, found.statistics, found.pruning) > 0
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

"""Estimates of runs that train: mode finetune, gradual runs, and what is left of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ziplm
from latency_profiler import LatencyTable
from ziplm import Options
from ziplm.pipelines import plan as plans
from ziplm.pipelines.common_steps import make_choices
from ziplm.pipelines.cost_model import COUNTED, CostModel
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.plan import plan
from ziplm.runs.folder import Run
from ziplm.runs.progress import Silent
from ziplm.tasks import Splits
from ziplm_estimates import UNIT, estimated, tokens
from ziplm_gradual import gradual_options


def test_gradual_runs_prune_and_train_for_each_target(tmp_path: Path) -> None:
    found = estimated({**gradual_options(tmp_path), "output": str(tmp_path / "run")})
    first, second = found.targets.values()
    assert {"calibrate", "prune", "finetune"} <= set(first)
    assert first["calibrate"] == pytest.approx(1.5 * second["calibrate"])  # it starts from the 1.5x member
    assert first["finetune"] > 4 * 8 * (3 / 1.5 + 1)  # four steps of eight examples, teacher, optimizer
    assert list(first).index("refit") < list(first).index("finetune") < list(first).index("measure")


def test_a_resumed_gradual_run_starts_from_the_last_member(tmp_path: Path) -> None:
    """Intermediate results of a target are those of its step from the member before."""
    options = {**gradual_options(tmp_path), "output": str(tmp_path / "run"), "speedup": [1.5, 2.5, 4.0]}
    run, fresh = Run(options["output"]), estimated(options).targets
    run.member_folder("1.5x").mkdir(parents=True)
    run.report_file("1.5x").write_text("{}")
    resumed = estimated(options).targets
    assert resumed == {
        # The evaluation of the dense model, which is not stored here, comes with the first target.
        "2.5x": {**fresh["2.5x"], "evaluate": fresh["2.5x"]["evaluate"] + tokens(options, "evaluation")},
        "4x": fresh["4x"],
    }

    def store_results(step: Run) -> None:
        """Store the result of a search, and half of the traces."""
        step.target_state("2.5x").mkdir(parents=True)
        (step.target_state("2.5x") / "found.json").write_text("{}")
        step.trace_file("").parent.mkdir()
        for layer in range(3):
            step.trace_file(f"layer{layer}.ffn").touch()

    store_results(run.for_target("2.5x", "dense"))
    assert estimated(options).targets == resumed  # control: another step
    store_results(run.for_target("2.5x", "1.5x"))
    found = estimated(options).targets["2.5x"]
    assert "search" not in found
    assert 0 < found["prune"] < resumed["2.5x"]["prune"]


def test_a_dry_run_knows_the_members_of_earlier_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "probe", lambda start: UNIT)
    options = {**gradual_options(tmp_path), "output": str(tmp_path / "run"), "speedup": [1.5]}
    ziplm.compress(**options)

    def calibration(**more: Any) -> str:
        lines = plan(Options(**{**options, **more}), Silent()).splitlines()
        (line,) = (line for line in lines if line.startswith("  calibrate: "))
        return line

    new = {"output": str(tmp_path / "new")}
    whole, first = calibration(speedup=[1.5, 2.5], **new), calibration(speedup=[2.5], **new)
    assert calibration(speedup=[2.5]) == calibration(speedup=[1.5, 2.5])
    assert calibration(speedup=[2.5]) not in (whole, first)  # control: from the dense model


def test_finetuned_runs_prune_once_and_train_each_target(tmp_path: Path) -> None:
    options = {**gradual_options(tmp_path), "output": str(tmp_path / "run"), "mode": "finetune"}
    found = estimated(options)
    assert {"calibrate", "prune"} <= set(found.once)
    first, second = found.targets.values()
    assert "calibrate" not in first
    assert first["finetune"] > second["finetune"] > 4 * 8 * (3 / 2.5 + 1)
    last = estimated({**options, "keep_best": False}).targets["1.5x"]["finetune"]
    start = load_start(Options(**options), Run(tmp_path / "new"))
    tokens = len(start.samples.judging) * max(len(sample["input_ids"]) for sample in start.samples.judging)
    # Samples kept apart are checked before the training and twice in it.
    assert first["finetune"] == pytest.approx(last + 3 * tokens * (1 + 1 / 1.5))
    timed = estimated({**options, "train_minutes": 2.0})
    assert [stages["finetune"] for stages in timed.targets.values()] == [120.0, 120.0]


class CountedTexts(Sequence[Any]):
    """Examples of 4 to 23 tokens, of which it is known how many were made, as if tokenised."""

    def __init__(self, count: int) -> None:
        self.count, self.made = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        if index >= self.count:
            raise IndexError(index)
        self.made += 1
        return {"input_ids": [1] * (4 + index % 20)}


def test_a_large_training_set_is_counted_once_and_in_part(tmp_path: Path) -> None:
    asked = Options(**{**gradual_options(tmp_path), "output": str(tmp_path / "run"), "mode": "finetune"})
    start = load_start(asked, Run(asked.output))
    choices = make_choices(start, start.dense, LatencyTable.load(asked.latency_table or ""))

    def training(texts: CountedTexts, **more: Any) -> list[float]:
        changed = replace(
            start, splits=Splits(texts, start.splits.evaluation), options=asked.model_copy(update=more)
        )
        model = CostModel(changed, Run(asked.output), choices, UNIT)
        return [model.target(target)["finetune"] for target in asked.targets()]

    few = CountedTexts(200)
    assert min(training(few)) > 0
    assert few.made == 200  # for two targets
    epochs = {"epochs_per_step": 1.0, "steps_per_target": 0, "keep_best": False}
    all_counted, many = CountedTexts(COUNTED), CountedTexts(20 * COUNTED)
    expected = [20 * seconds for seconds in training(all_counted, **epochs)]
    assert training(many, **epochs) == pytest.approx(expected, rel=0.03)
    assert all_counted.made == many.made == COUNTED
    timed = CountedTexts(200)
    assert training(timed, train_minutes=2.0) == [120.0, 120.0]
    assert timed.made == 0

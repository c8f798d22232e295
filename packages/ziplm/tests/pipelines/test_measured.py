"""What a report calls measured is the finished model: the very weights that are saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from safetensors.torch import load_file
from transformers import PreTrainedModel
from ziplm.pipelines import evaluation_steps, refit_steps, target_steps
from ziplm.stages.measure import Measured
from ziplm_clock import count_products
from ziplm_compressed import Recorder, options_for
from ziplm_gradual import gradual_options

Weights = dict[str, torch.Tensor]
SPEEDUP = 1.7


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Weights]:
    """The weights of all models that are measured; all measure as fast as asked for, each a bit faster."""
    count_products(monkeypatch)  # the latency table is without noise
    seen: list[Weights] = []

    def measure(dense: PreTrainedModel, small: PreTrainedModel, *_: Any, **__: Any) -> Measured:
        assert not small.training
        seen.append({name: weight.clone() for name, weight in small.state_dict().items()})
        speedup = SPEEDUP * (1 + len(seen) / 1000)
        return Measured(speedup, speedup, speedup, 1 / speedup, 1.0)

    monkeypatch.setattr(target_steps, "measure", measure)
    return seen


def measuring(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return options of a run that measures."""
    measured = {name: value for name, value in options.items() if name != "latency_table"}
    counted = {"clock": "cpu", "threads": 1, "attention": "eager", "profile_seconds": 1e-3}
    return {**measured, **counted, "speedup": [SPEEDUP], **more}


def same(timed: Weights, folder: Path) -> bool:
    saved = load_file(folder / "model.safetensors")
    return all(torch.equal(weight, timed[name]) for name, weight in saved.items())


def test_the_weights_that_are_saved_are_those_that_are_measured_last(
    files: Path, architecture: str, tmp_path: Path, timed: list[Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit_steps, "is_clearly_lower", lambda after, before: True)  # keep the refit
    (member,) = ziplm.compress(**measuring(options_for(files, architecture, tmp_path / "run")))
    assert member.metrics["refit"]["kept"]
    assert len(timed) == 1 + len(member.metrics["fit"])
    assert same(timed[-1], member.folder)
    assert not same(timed[-2], member.folder)  # control: fit has measured the model before the refit
    assert member.metrics["measured"]["speedup"] == SPEEDUP * (1 + len(timed) / 1000)


def test_a_gradual_run_measures_after_fine_tuning(tmp_path: Path, timed: list[Weights]) -> None:
    options = measuring(gradual_options(tmp_path), refit=False, task_weight=1.0)
    (member,) = ziplm.compress(output=tmp_path / "run", **options)
    assert same(timed[-1], member.folder)
    assert not same(timed[-2], member.folder)  # control: fit has measured the model before its training


@pytest.mark.parametrize("mode", ["oneshot", "gradual"])
def test_a_resumed_run_keeps_the_measurement(
    tmp_path: Path, timed: list[Weights], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    options = measuring(gradual_options(tmp_path), mode=mode)
    with monkeypatch.context() as patch:
        patch.setattr(evaluation_steps, "evaluate", _stopped)
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(output=tmp_path / "run", **options)
    count, recorder = len(timed), Recorder()
    (member,) = ziplm.compress(output=tmp_path / "run", **options, progress=recorder)
    assert len(timed) == count  # nothing is measured again
    assert "measure" not in recorder.stages
    assert member.metrics["measured"]["speedup"] == SPEEDUP * (1 + count / 1000)
    assert same(timed[-1], member.folder)


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt

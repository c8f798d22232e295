"""Alternatives are measured in the precision of the run, and evaluated in that of the dense model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from transformers import PreTrainedModel
from ziplm.pipelines import alternatives
from ziplm.pipelines.values import Start
from ziplm.stages import measure
from ziplm_clock import count_products
from ziplm_compressed import options_for


def test_measuring_in_half_precision_converts_no_model_that_is_evaluated(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_products(monkeypatch)
    evaluate, measured, evaluated = alternatives.evaluate, measure._timed_call, []
    timed: list[torch.dtype] = []

    def noted(start: Start, model: PreTrainedModel, *arguments: Any) -> Any:
        evaluated.append((start.dense.dtype, model.dtype))
        return evaluate(start, model, *arguments)

    def noted_time(model: PreTrainedModel, *arguments: Any) -> Any:
        timed.append(model.dtype)
        return measured(model, *arguments)

    monkeypatch.setattr(alternatives, "evaluate", noted)
    monkeypatch.setattr(measure, "_timed_call", noted_time)
    options = options_for(files, "bert", tmp_path / "run", speedup=1.2, alternatives=True, dtype="bfloat16")
    options |= {"latency_table": None, "clock": "cpu", "profile_seconds": 1e-3, "measure_seconds": 1e-3}
    ziplm.compress(**options)
    assert set(timed) == {torch.bfloat16}
    assert len(evaluated) > 1
    assert set(evaluated) == {(torch.float32, torch.float32)}

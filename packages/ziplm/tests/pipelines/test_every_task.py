"""Every task in every regime, from a checkpoint and a file to a measured smaller checkpoint."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import ziplm
from ziplm import UsageError, compress
from ziplm.options.kinds import Regime
from ziplm.tasks import TASKS, Source, make_task
from ziplm_clock import count_products
from ziplm_tasks import file_for, model_for
from ziplm_text import letter_tokenizer

LENGTH, SPEEDUP = 24, 1.5
INPUTS: dict[str, dict[str, Any]] = {
    "throughput": {"batch_size": 2, "input_length": LENGTH},
    "latency": {"input_length": (4, 9)},
    "generate": {"prompt_length": (4, 9), "new_tokens": 5},
}


@pytest.mark.parametrize("regime", get_args(Regime))
@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_compressed_in_every_regime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, regime: str
) -> None:
    count_products(monkeypatch)
    ziplm.save(model_for(name), tmp_path / "dense", letter_tokenizer())
    file = file_for(name, tmp_path, 3)
    options: dict[str, Any] = {
        "model": str(tmp_path / "dense"),
        "task": name,
        "output": str(tmp_path / "run"),
        "speedup": [SPEEDUP],
        "train_file": file,
        "validation_file": file,
        "max_length": LENGTH,
        "calibration_samples": 12,
        "search_samples": 4,
        "evaluations": 2,
        "threads": 1,
        "clock": "cpu",
        "attention": "eager",  # its products can be counted
        "profile_seconds": 1e-3,
        "measure_seconds": 1e-3,
        "regime": regime,
        **INPUTS[regime],
    }
    if regime == "generate" and name != "causal-lm":
        with pytest.raises(UsageError, match="cannot generate text; use --regime latency"):
            compress(**options)
        return
    (member,) = compress(**options)
    metrics = member.metrics
    assert metrics["measured"]["speedup"] >= SPEEDUP
    assert metrics["measured"]["speedup"] == pytest.approx(metrics["predicted"]["speedup"], rel=1e-6)
    assert metrics["environment"]["batch_size"] == (2 if regime == "throughput" else 1)
    assert metrics["parameters"]["layers"] < metrics["dense_parameters"]["layers"]
    assert math.isfinite(metrics["divergence"])

    task = make_task(name)
    small = task.load_model(str(member.folder), attn_implementation="eager")
    splits = task.load_splits(
        small, task.load_tokenizer(str(member.folder)), Source(validation_file=file), LENGTH
    )
    ((split, features),) = splits.evaluation.items()
    assert metrics["metric"]["name"] == task.metric
    reported = metrics["metrics"]["compressed"][split]
    # Each example occurs three times, so that rounding decides the ranks of equal predictions.
    assert task.evaluate(small, features) == pytest.approx(reported, rel=1e-3, abs=1e-3)


def test_all_regimes_are_tested() -> None:
    assert set(INPUTS) == set(get_args(Regime))

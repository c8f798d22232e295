"""Samples prefer long texts, and are as many as tell something new: fewer of long texts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from obs_structured import prune
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel
from ziplm import Options, shrink
from ziplm.pipelines.samples import (
    ENOUGH_SAMPLES,
    TOKENS_PER_COLUMN,
    draw_samples,
    kept_apart,
    usual_lengths,
)
from ziplm.tasks import Splits, make_task
from ziplm_models import make_traces, removed_by, tiny_model

WIDEST = 2048
DENSE = BertForSequenceClassification(
    BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=WIDEST
    )
)


def calibrated(length: int, task: str = "classification", dense: PreTrainedModel = DENSE, **more: Any) -> int:
    """Return how many of many texts of a length are used to calibrate."""
    options = Options(model="m", task=task, speedup=(2.0,), output="run", **more)
    texts = [{"input_ids": [1] * length, "attention_mask": [1] * length}] * 5000
    samples = draw_samples(texts, options, make_task(task), dense, 0)
    assert len(samples.search) == len(samples.judging) == 256
    return len(samples.calibration)


@pytest.mark.parametrize(("length", "expected"), [(1, 2048), (16, 2048), (20, 1639), (32, 1024), (512, 1024)])
def test_long_texts_need_fewer_samples(length: int, expected: int) -> None:
    found = calibrated(length)
    assert found == expected
    assert found == 2048 or found * length >= TOKENS_PER_COLUMN * WIDEST
    assert found >= ENOUGH_SAMPLES


def test_a_number_that_is_asked_for_is_used() -> None:
    assert calibrated(512, calibration_samples=1500) == 1500


def test_a_checkpoint_without_a_branch_is_calibrated_for_those_that_remain() -> None:
    weight = DENSE.bert.encoder.layer[0].attention.output.dense.weight
    without_attention = shrink(DENSE, [2, 0], [prune(weight, torch.eye(8), 4), None])
    assert calibrated(20, dense=without_attention) == calibrated(20) > ENOUGH_SAMPLES
    small = tiny_model("BertForSequenceClassification")
    nothing_left = shrink(small, removed_by(small, "everything"), make_traces(small))
    assert calibrated(20, dense=nothing_left) == calibrated(20, dense=small) == ENOUGH_SAMPLES


def test_language_models_keep_their_number_of_windows() -> None:
    assert calibrated(64, "causal-lm") == 512


def test_texts_are_drawn_in_proportion_to_their_length() -> None:
    lengths = torch.tensor([4, 12] * 5000)  # every second text is three times as long
    texts = [{"input_ids": [number] * length} for number, length in enumerate(lengths.tolist())]
    options = Options(model="m", task="classification", speedup=(2.0,), output="run", search_samples=500)
    samples = draw_samples(texts, options, make_task("classification"), DENSE, 0)
    drawn = [*samples.calibration, *samples.search, *samples.judging]
    assert len({sample["input_ids"][0] for sample in drawn}) == len(drawn)  # nothing twice
    for part in (samples.calibration[:500], samples.search, samples.judging):
        long = sum(len(sample["input_ids"]) == 12 for sample in part) / len(part)
        assert 0.65 < long < 0.85  # 3 / (1 + 3), less where long ones have been used up
    uniform = usual_lengths(texts, 500, 0)  # control, by which latency is measured
    assert 0.43 < uniform.count(12) / 500 < 0.57


@pytest.mark.parametrize("count", [60, 5000])
def test_samples_kept_apart_are_not_trained_on(count: int) -> None:
    texts = [{"input_ids": [number] * (1 + number % 7)} for number in range(count)]
    task = make_task("classification")
    options = Options(model="m", task="classification", speedup=(2.0,), output="run", seed=3)
    samples = draw_samples(texts, options, task, DENSE, 3)
    start = SimpleNamespace(splits=Splits(texts), samples=samples, options=options, task=task)
    examples, apart = kept_apart(start)  # type: ignore[arg-type]
    numbers = [[sample["input_ids"][0] for sample in part] for part in (examples, apart)]
    assert sorted(numbers[0] + numbers[1]) == list(range(count))
    assert apart == samples.judging

"""Calibration uses as many samples as tell something new: fewer of long texts, and more of short ones."""

from typing import Any

import pytest
from transformers import BertConfig, BertForSequenceClassification
from ziplm import Options
from ziplm.pipelines.samples import ENOUGH_SAMPLES, TOKENS_PER_COLUMN, draw_samples
from ziplm.tasks import make_task

WIDEST = 2048
DENSE = BertForSequenceClassification(
    BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=WIDEST
    )
)


def calibrated(length: int, task: str = "classification", **more: Any) -> int:
    """Return how many of many texts of a length are used to calibrate."""
    options = Options(model="m", task=task, speedup=(2.0,), output="run", **more)
    texts = [{"input_ids": [1] * length, "attention_mask": [1] * length}] * 5000
    samples = draw_samples(texts, options, make_task(task), DENSE, 0)
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


def test_language_models_keep_their_number_of_windows() -> None:
    assert calibrated(64, "causal-lm") == 512

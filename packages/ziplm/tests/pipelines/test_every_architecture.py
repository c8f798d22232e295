"""Every architecture through the pipelines: from a checkpoint and a file to a measured smaller checkpoint."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from ziplm_clock import count_products
from ziplm_compressed import words
from ziplm_models import DECODERS, SETTINGS
from ziplm_pipeline import lively_model
from ziplm_text import bare_tokenizer, letter_tokenizer, write_rows

SPEEDUP = 1.5


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, regime: str, **more: Any
) -> ziplm.Family:
    """Compress a tiny model; its time is the number of its products, so that it is always the same."""
    count_products(monkeypatch)
    decoder = prefix in DECODERS
    head = ("LMHeadModel" if prefix == "GPT2" else "ForCausalLM") if decoder else "ForSequenceClassification"
    tokenizer = bare_tokenizer() if decoder else letter_tokenizer()
    # The Auto classes load a Qwen2 tokenizer for this model type, which adds a token of its own.
    room = {"vocab_size": 64} if prefix == "Qwen2" else {}
    ziplm.save(lively_model(f"{prefix}{head}", **room), tmp_path / "dense", tokenizer)
    if decoder:
        file = str(tmp_path / "train.txt")
        Path(file).write_text(" ".join(words(400, 1)), encoding="utf-8")
    else:
        rows = [{"text": text, "label": ord(text[0]) % 2} for text in words(60, 0)]
        file = write_rows(tmp_path / "train.csv", rows)
    inputs: dict[str, Any] = {
        "throughput": {"batch_size": 2, "input_length": 16},
        "latency": {"input_length": (4, 9)},
        "generate": {"prompt_length": (4, 9), "new_tokens": 5},
    }[regime]
    return ziplm.compress(
        str(tmp_path / "dense"),
        "causal-lm" if decoder else "classification",
        output=str(tmp_path / "run"),
        speedup=[SPEEDUP],
        train_file=file,
        validation_file=file,
        max_length=16,
        calibration_samples=12,
        search_samples=4,
        evaluations=2,
        threads=1,
        clock="cpu",
        attention="eager",  # its products can be counted
        profile_seconds=1e-3,
        measure_seconds=1e-3,
        regime=regime,
        **inputs,
        **more,
    )


@pytest.mark.parametrize(
    ("prefix", "regime"),
    [
        (prefix, regime)
        for prefix in SETTINGS
        for regime in (["throughput", "generate"] if prefix in DECODERS else ["throughput", "latency"])
    ],
)
def test_a_member_is_as_fast_as_asked_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, regime: str
) -> None:
    (member,) = run(tmp_path, monkeypatch, prefix, regime)
    assert member.metrics["measured"]["speedup"] >= 0.97 * SPEEDUP
    assert math.isfinite(member.metrics["divergence"])
    assert member.metrics["divergence"] > 0
    model, dense = ziplm.load(member.folder), ziplm.load(tmp_path / "dense")
    assert {"attention": model.config.zip_heads, "ffn": model.config.zip_widths} == member.sizes
    ids = torch.tensor([[5, 6, 7, 8]])
    assert not torch.allclose(model(ids).logits, dense(ids).logits, rtol=1e-3)


@pytest.mark.parametrize("prefix", ["MPNet", "ModernBert", "Llama"])
def test_the_papers_method_works_without_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    (member,) = run(tmp_path, monkeypatch, prefix, "throughput", method="ziplm")
    assert member.metrics["measured"]["speedup"] >= 0.97 * SPEEDUP


@pytest.mark.parametrize("prefix", ["MPNet", "DistilBert", "ModernBert", "Qwen2"])
def test_a_member_can_be_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    (member,) = run(
        tmp_path,
        monkeypatch,
        prefix,
        "throughput",
        mode="gradual",
        steps_per_target=2,
        train_batch_size=4,
        learning_rate=1e-3,
    )
    assert member.metrics["training"]["steps"] == 2
    assert math.isfinite(member.metrics["divergence"])

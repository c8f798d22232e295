"""A latency table predicts what is measured, in every regime, by a clock that counts multiplications."""

from typing import Any

import numpy as np
import pytest
import torch
from latency_profiler import Family, LatencyCurve, Timing
from transformers import PreTrainedModel
from ziplm import shrink
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages import profile
from ziplm.stages.measure import compare_models
from ziplm.stages.profile import Call, _with_groups, branch_calls, by_median, latency_table
from ziplm_clock import count_products
from ziplm_models import VOCABULARY, make_traces, removed_by, sizes_of, tiny_model

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"


PATTERNS = ["nothing", "heads and columns", "first attention", "everything"]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    count_products(monkeypatch)


def counting(**settings: Any) -> Setting:
    return Setting(threads=1, clock="cpu", **{"lengths": (10,), **settings})


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


REGIMES: list[tuple[str, dict[str, Any]]] = [
    (DECODER, {"regime": "throughput"}),
    (ENCODER, {"regime": "throughput"}),
    (DECODER, {"regime": "latency", "lengths": (3, 4, 17)}),
    (ENCODER, {"regime": "latency", "lengths": (3, 4, 17), "batch_size": 2}),
    (DECODER, {"regime": "generate", "lengths": (3, 9, 17), "new_tokens": 6}),
    (DECODER, {"regime": "generate", "lengths": (3, 5, 7, 17), "new_tokens": 6, "batch_size": 2}),
    (DECODER, {"regime": "generate", "lengths": (5,), "new_tokens": 2}),
    (DECODER, {"regime": "generate", "lengths": (5, 6), "new_tokens": 1}),
]


@pytest.mark.parametrize(("name", "regime"), REGIMES)
def test_a_table_predicts_what_is_measured(name: str, regime: dict[str, Any], products: None) -> None:
    model, setting = tiny_model(name), counting(**regime)
    models = {pattern: shrunk(model, pattern) for pattern in PATTERNS}
    table = latency_table(model, setting, max_seconds=1e-3)
    measured = compare_models(models, setting, max_seconds=1e-3)
    for pattern, small in models.items():
        assert table.predict(sizes_of(small)) == pytest.approx(measured[pattern].seconds, rel=1e-9)


@pytest.mark.parametrize("overhead", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("engine", ["onnxruntime", "eager"])
def test_what_a_branch_costs_only_when_it_runs_alone_is_not_predicted(
    engine: str, overhead: float, products: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in engines that run files, each measurement of a branch takes longer by the cost of a call."""
    real = profile.profile_families

    def with_calls(families: dict[str, Family], **settings: Any) -> dict[str, LatencyCurve]:
        curves = real(families, **(settings | {"engine": "eager"}))
        return {
            name: curve if name.startswith("whole") else profile.less(curve, -overhead)
            for name, curve in curves.items()
        }

    monkeypatch.setattr(profile, "profile_families", with_calls)
    monkeypatch.setattr(profile, "run_in_engine", lambda model, *_, **__: model)
    model = tiny_model(ENCODER)
    models = {pattern: shrunk(model, pattern) for pattern in PATTERNS}
    table = latency_table(model, counting(engine=engine), max_seconds=1e-3)
    measured = compare_models(models, counting(), max_seconds=1e-3)
    gaps = [table.predict(sizes_of(small)) / measured[name].seconds - 1 for name, small in models.items()]
    if engine == "eager" and overhead == 1.0:
        assert min(gaps) > 0.1  # the control: removed branches seem to take longer than the whole model
    else:
        assert gaps == pytest.approx([0.0] * len(gaps), abs=1e-9)


def test_a_table_predicts_only_the_setting_it_was_measured_in(products: None) -> None:
    model = tiny_model(DECODER)
    models = {"dense": model, "small": shrunk(model, "first attention")}
    regime: dict[str, Any] = {"regime": "generate", "lengths": (3, 9, 17), "new_tokens": 6}
    table = latency_table(model, counting(**regime), max_seconds=1e-3)

    def gaps(**change: Any) -> list[float]:
        measured = compare_models(models, counting(**(regime | change)), max_seconds=1e-3)
        return [
            abs(table.predict(sizes_of(small)) / measured[name].seconds - 1) for name, small in models.items()
        ]

    for change in (
        {"new_tokens": 7},
        {"lengths": (3, 8, 17)},
        {"batch_size": 2},
        {"regime": "latency"},
        {"regime": "throughput", "lengths": (10,)},
    ):
        assert min(gaps(**change)) > 1e-3, change
    assert max(gaps(lengths=(1, 9, 50))) < 1e-9  # the median stays the same


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 40])
@pytest.mark.parametrize("prompts", [(4,), (4, 9), (4, 9, 30), (4, 4, 9, 9)])
def test_the_steps_of_generation_add_up_to_all_tokens_and_cache_lengths(
    prompts: tuple[int, ...], new_tokens: int
) -> None:
    setting = Setting(regime="generate", lengths=prompts, new_tokens=new_tokens)
    middle = float(np.median(prompts))
    steps = branch_calls(setting, "attention")
    decoding = {step: share for step, share in steps.items() if step.past}
    assert sum(decoding.values()) == pytest.approx(new_tokens - 1)
    in_cache = sum(share * step.past for step, share in decoding.items() if step.past)
    assert in_cache == pytest.approx(sum(middle + made for made in range(new_tokens - 1)))
    assert sum(share * step.tokens for step, share in steps.items() if step.past == 0) == pytest.approx(
        middle
    )
    assert len(decoding) <= 3
    without_cache = branch_calls(setting, "ffn")
    assert sum(share * step.tokens for step, share in without_cache.items()) == pytest.approx(
        middle + new_tokens - 1
    )
    assert all(step.past is None for step in without_cache)


def test_only_generation_uses_a_cache() -> None:
    setting = Setting(regime="latency", lengths=(4, 9))
    assert branch_calls(setting, "attention") == {Call(4): 0.5, Call(9): 0.5}
    assert branch_calls(Setting(lengths=(7,)), "ffn") == {Call(7): 1.0}


def test_curves_of_medians_are_made_monotone() -> None:
    def timing(fastest: float, median: float) -> Timing:
        return Timing(fastest, fastest, fastest, fastest, median, 9.0, 0.1, 10, 1, "rel_error")

    timings = (timing(1.0, 4.0), timing(0.9, 2.0), timing(0.8, 3.0))
    curve = by_median(LatencyCurve((8, 4, 0), (1.0, 0.9, 0.8), timings))
    assert curve.seconds == (4.0, 2.5, 2.5)


def test_a_model_without_branches_still_counts_the_tokens_in_its_cache() -> None:
    model = tiny_model(DECODER)
    bare = _with_groups(model, {"attention": 0, "ffn": 0})
    prompts = torch.randint(3, VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = bare(prompts[:, :3], use_cache=True)
        second = bare(prompts[:, 3:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(second.logits, bare(prompts).logits[:, 3:])
    assert [branch.groups for branch in architecture_of(model).branches(model)] == [4, 24] * 3
    assert [branch.groups for branch in architecture_of(bare).branches(bare)] == [0, 0] * 3
    assert model.transformer.h[2].attn.layer_idx == 2

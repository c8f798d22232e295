"""Measuring combines the parts of a call, has no side effects, and refuses settings that do not fit."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from latency_profiler import CpuClock
from transformers import PreTrainedModel
from ziplm import UsageError, shrink
from ziplm.options.setting import Setting
from ziplm.stages.measure import PartsClock, compare_models, for_measuring, measure
from ziplm.stages.profile import latency_table
from ziplm_clock import count_products
from ziplm_models import make_traces, removed_by, tiny_model

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


@pytest.mark.parametrize(("figure", "expected"), [(np.mean, 4.0 + 40.0), (np.median, 2.0 + 20.0)])
def test_the_times_of_a_calls_parts_are_combined_by_the_given_figure(
    figure: Callable[..., Any], expected: float
) -> None:
    class Known(CpuClock):
        def elapsed(self, run: Callable[[], object]) -> float:
            run()
            return next(seconds)

    seconds: Iterator[float] = iter([1.0, 2.0, 9.0, 10.0, 20.0, 90.0])
    clock = PartsClock(Known(), 3, figure)
    seen: list[object] = []
    call = clock.call([seen.append] * 3)
    assert clock.elapsed(lambda: (call("a", "b", "c"), call("d", "e", "f"))) == expected
    assert seen == list("abcdef")


def test_what_others_use_of_the_machine_is_part_of_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    count_products(monkeypatch)
    model = tiny_model(ENCODER)
    small = shrunk(model, "everything")
    setting = Setting(
        threads=1, clock="cpu", regime="latency", lengths=(8, 4)
    )  # several lengths are timed one by one
    quiet = measure(model, small, setting, max_seconds=1e-3)
    assert quiet.doubt == quiet.competition == 0
    monkeypatch.setattr(CpuClock, "watch", lambda _: lambda: 0.75)
    busy = measure(model, small, setting, max_seconds=1e-3)
    assert busy.speedup > quiet.speedup > 1  # small models are slowed more
    correction = busy.speedup / quiet.speedup
    assert (busy.low, busy.high) == pytest.approx(
        (quiet.low * correction / (1 + busy.doubt), quiet.high * correction * (1 + busy.doubt))
    )
    assert busy.low < quiet.speedup
    assert busy.competition == 0.75
    assert str(busy).endswith("], while other processes used 75% of the cores")
    assert str(quiet).endswith("]")


@pytest.mark.parametrize(
    ("there", "asked", "same"),
    [
        ("cuda:0", "cuda:0", True),
        ("cuda:0", "cuda:1", False),
        ("cuda:1", "cuda", True),  # the current GPU
        ("cuda:0", "cuda", False),
        ("cpu", "cuda", False),
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
    ],
)
def test_a_model_is_copied_unless_it_is_on_the_very_device(
    there: str, asked: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    model: Any = SimpleNamespace(device=torch.device(there), dtype=torch.float32)
    assert (for_measuring(model, Setting(device=asked)) is model) == same
    assert for_measuring(model, Setting(device=asked, dtype="bfloat16")) is not model


def test_measuring_does_not_change_the_random_state() -> None:
    model = tiny_model(DECODER)
    setting = Setting(threads=1, regime="generate", lengths=(3,), new_tokens=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    compare_models({"dense": model, "small": shrunk(model, "everything")}, setting, max_seconds=1e-3)
    latency_table(model, setting, max_seconds=1e-3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (ENCODER, {"regime": "generate"}, "BertForMaskedLM cannot generate text; use --regime latency"),
        ("GPT2Model", {"regime": "generate"}, "GPT2Model cannot generate text"),
        (DECODER, {"regime": "generate"}, "64 new tokens cannot be generated; .* 64 positions: give fewer"),
        (DECODER, {"regime": "generate", "new_tokens": 0}, "0 new tokens"),
        (
            DECODER,
            {"regime": "generate", "new_tokens": 24, "lengths": (8, 41)},
            "a prompt of 41 tokens and 24 new ones is too long; the model takes 64: give prompts of up to 40",
        ),
        (
            ENCODER,
            {"regime": "latency", "lengths": (65,)},
            "an input of 65 tokens is too long; .* inputs of up to 64",
        ),
        (
            DECODER,
            {"regime": "latency", "lengths": (0, 5)},
            "an input cannot have 0 tokens; give whole numbers from 1 up",
        ),
        (
            DECODER,
            {"lengths": (65,)},
            "an input of 65 tokens is too long; the model takes 64: give inputs of up to 64",
        ),
        (
            DECODER,
            {"regime": "latency", "clock": "cpu", "threads": 2},
            "clock cpu needs a single thread on a CPU; use --threads 1, or --clock wall",
        ),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    model = tiny_model(name)
    with pytest.raises(UsageError, match=message):
        compare_models({"a": model, "b": model}, Setting(**settings))
    if settings.get("threads") != 2:  # there, the error is the profiler's own
        with pytest.raises(UsageError, match=message):
            latency_table(model, Setting(**settings))

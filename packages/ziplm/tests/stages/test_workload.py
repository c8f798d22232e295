"""Lengths, batch sizes, environments and generation of each regime."""

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import UsageError, shrink
from ziplm.options.setting import Setting
from ziplm.stages.workload import environment_of, generation, setting_for
from ziplm_models import POSITIONS, VOCABULARY, make_traces, removed_by, tiny_model

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


def test_default_lengths_and_batch_sizes_depend_on_regime_and_model() -> None:
    model = tiny_model(DECODER)
    assert POSITIONS == 64
    for setting, lengths in (
        (Setting(regime="latency"), (16, 64)),
        (Setting(regime="generate", new_tokens=8), (16,)),
        (Setting(regime="generate", new_tokens=60), (4,)),
        (Setting(regime="latency", lengths=(9, 3)), (3, 9)),
    ):
        assert setting_for(setting, [model]).lengths == lengths
    batches = [Setting(regime=regime).batch_size for regime in ("throughput", "latency", "generate")]
    assert batches == [8, 1, 1]
    assert Setting(regime="latency", batch_size=4).batch_size == 4


def test_environments_of_different_regimes_differ() -> None:
    settings = [
        Setting(batch_size=1),
        Setting(regime="latency"),
        Setting(regime="latency", lengths=(16,)),
        Setting(regime="generate", lengths=(16,)),
        Setting(regime="generate", lengths=(16,), new_tokens=32),
    ]
    environments = [environment_of(setting, "sdpa") for setting in settings]
    for index, one in enumerate(environments):
        for other in environments[index + 1 :]:
            assert one.differences(other)
    assert "regime generate, prompt lengths 16, new tokens 32" in str(environments[-1])


def test_environments_record_lengths_as_version_0_1_did() -> None:
    """Tables of 0.1 hold the one length of throughput as "sequence_length", and all others as details."""
    throughput = environment_of(Setting(lengths=(9,)), "sdpa")
    assert throughput.sequence_length == 9
    assert throughput.details == {"attention": "sdpa", "regime": "throughput"}
    latency = environment_of(Setting(regime="latency", lengths=(9, 4)), "sdpa")
    assert latency.sequence_length is None
    assert latency.details == {"attention": "sdpa", "regime": "latency", "input lengths": "4 9"}


def test_throughput_has_one_length() -> None:
    assert Setting().lengths == (128,)
    with pytest.raises(UsageError, match="throughput is measured at one length, not at 2; give one"):
        Setting(lengths=(4, 9))


@pytest.mark.parametrize("pattern", ["nothing", "first attention", "all attention", "everything"])
def test_generation_makes_exactly_the_new_tokens_and_always_the_same(pattern: str) -> None:
    model = shrunk(tiny_model(DECODER), pattern)
    model.generation_config.eos_token_id = list(range(1, VOCABULARY))  # almost every token would end the text
    prompts = torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(0))
    made = generation(model, 7)(prompts)
    assert made.shape == (2, 12)
    assert torch.equal(made[:, :5], prompts)
    torch.manual_seed(7)
    assert torch.equal(generation(model, 7)(prompts), made)


def test_generation_with_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="engine compile; use engine eager"):
        Setting(regime="generate", engine="compile")

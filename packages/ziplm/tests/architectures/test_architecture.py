"""Architectures say where branches, blocks, masks and the residual stream are; other models are refused."""

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)
from ziplm import UnsupportedModel, shrink
from ziplm.architectures.registry import architecture_of
from ziplm_models import (
    HEADS,
    HIDDEN,
    WIDTH,
    make_traces,
    removed_by,
    tiny_model,
)

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


def test_branches_are_listed_in_the_order_of_the_forward_pass() -> None:
    model = tiny_model("GPT2LMHeadModel")
    branches = architecture_of(model).branches(model)
    assert [branch.name for branch in branches[:3]] == ["layer0.attention", "layer0.ffn", "layer1.attention"]
    assert [(branch.groups, branch.group_size) for branch in branches[:2]] == [(HEADS, 4), (WIDTH, 1)]
    assert architecture_of(model).weight(model, branches[0]).shape == (16, 16)
    assert architecture_of(model).weight(model, branches[1]).shape == (16, WIDTH)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [DECODER, ENCODER])
def test_the_mask_equals_the_one_that_the_model_passes_to_its_attentions(name: str, attention: str) -> None:
    model = tiny_model(name, attention)
    architecture = architecture_of(model)
    branch = architecture.branches(model)[0]
    part = architecture.parts(model, branch)["attn" if name == DECODER else "attention"]
    seen: list[Any] = []
    part.register_forward_pre_hook(
        lambda _, arguments, named: seen.append(named.get("attention_mask", (*arguments, None)[1])),
        with_kwargs=True,
    )
    tokens = torch.ones(2, 7, dtype=torch.int64)
    model(tokens, attention_mask=torch.ones_like(tokens))
    mask = architecture.attention_mask(model, branch, torch.zeros(2, 7, HIDDEN))
    assert (mask is None) == (seen[0] is None) == (name == ENCODER or attention == "sdpa")
    if isinstance(mask, torch.Tensor):
        assert torch.equal(mask.expand_as(seen[0]), seen[0])


def unsupported_models() -> list[tuple[PreTrainedModel, str]]:
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return [
        (tiny_model("BertLMHeadModel", is_decoder=True), "it is used as a decoder"),
        (tiny_model("GPT2LMHeadModel", add_cross_attention=True), "it attends to an encoder"),
        (
            T5EncoderModel(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)),
            "'t5' are not known",
        ),
        (
            tiny_model("Qwen3ForCausalLM", use_sliding_window=True, sliding_window=4, max_window_layers=1),
            "some of its layers have a sliding window",
        ),
        (BertForPreTraining(BertConfig(**small)), "no shrunk form of BertForPreTraining"),
    ]


@pytest.mark.parametrize("index", range(5))
def test_models_that_cannot_be_shrunk_are_refused(index: int) -> None:
    model, message = unsupported_models()[index]
    with pytest.raises(UnsupportedModel, match=message):
        architecture_of(model)

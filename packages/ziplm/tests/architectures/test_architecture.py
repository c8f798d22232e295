"""Architectures say where branches, blocks, masks and the residual stream are; other models are refused."""

import itertools
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
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
    tokens_for,
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


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_the_stream_is_where_the_architecture_says(name: str) -> None:
    """The stream before a branch plus its output is the stream before the next one; in BERT, after a norm."""
    model = tiny_model(name)
    architecture = architecture_of(model)
    seen: dict[str, torch.Tensor] = {}

    def keep(key: str, tensor: torch.Tensor) -> None:
        seen[key] = tensor.detach()

    for branch in architecture.branches(model):
        point = architecture.stream_before(model, branch)
        point.module.register_forward_pre_hook(
            lambda _, args, key=branch.name, at=point.argument: keep(f"{key} before", args[at])
        )
        architecture.output_layer(model, branch).register_forward_hook(
            lambda _, args, output, key=branch.name: keep(f"{key} output", output)
        )
    model(**tokens_for(name))
    names = [branch.name for branch in architecture.branches(model)]
    for now, following in itertools.pairwise(names):
        after = seen[f"{now} before"] + seen[f"{now} output"]
        if name.startswith("Bert"):
            layer, kind = now.split(".")
            block = architecture.layers(model)[int(layer.removeprefix("layer"))]
            norm = (block.attention.output if kind == "attention" else block.output).LayerNorm
            after = norm(after).detach()
        torch.testing.assert_close(after, seen[f"{following} before"])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "first attention"])
def test_the_blocks_of_a_layer_compute_the_layer_with_and_without_a_cache(
    pattern: str, attention: str
) -> None:
    model = shrunk(tiny_model(DECODER, attention, scale_attn_by_inverse_layer_idx=True), pattern)
    architecture = architecture_of(model)
    hidden = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    for layer in architecture.layers(model):
        handle = layer.register_forward_hook(lambda _, __, output: seen.append(output))
        stream = hidden if layer is architecture.layers(model)[0] else seen[-1]
        with torch.no_grad():
            whole = layer(stream, None, architecture.attention_mask(model, stream))
            for past in (None, 0, 1, 8):
                start = past or 0
                before = None if past is None else stream[:, :start]
                mask = architecture.attention_mask(model, stream[:, start:], start)
                attend = architecture.branch_module(layer, "attention", before)
                for _ in range(2):  # every call starts from the same cache
                    middle = attend(stream[:, start:], mask)
                made = architecture.branch_module(layer, "ffn")(middle)
                torch.testing.assert_close(made, whole[:, start:], rtol=1e-4, atol=1e-5)
        handle.remove()


def test_a_block_depends_on_its_past() -> None:
    model = tiny_model(DECODER)
    architecture, layer = architecture_of(model), architecture_of(model).layers(model)[1]
    hidden = torch.randn(1, 9, HIDDEN, generator=torch.Generator().manual_seed(0))
    outputs = [
        architecture.branch_module(layer, "attention", past)(hidden[:, 8:])
        for past in (hidden[:, :8], hidden[:, :7], hidden[:, 1:9])
    ]
    assert not torch.allclose(outputs[0], outputs[1], rtol=1e-3)
    assert not torch.allclose(outputs[0], outputs[2], rtol=1e-3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [DECODER, ENCODER])
def test_the_mask_equals_the_one_that_the_model_passes_to_its_attentions(name: str, attention: str) -> None:
    model = tiny_model(name, attention)
    architecture = architecture_of(model)
    part = architecture.parts(model, architecture.branches(model)[0])[
        "attn" if name == DECODER else "attention"
    ]
    seen: list[Any] = []
    part.register_forward_pre_hook(
        lambda _, arguments, named: seen.append(named.get("attention_mask", (*arguments, None)[1])),
        with_kwargs=True,
    )
    tokens = torch.ones(2, 7, dtype=torch.int64)
    model(tokens, attention_mask=torch.ones_like(tokens))
    mask = architecture.attention_mask(model, torch.zeros(2, 7, HIDDEN))
    assert (mask is None) == (seen[0] is None) == (name == ENCODER or attention == "sdpa")
    if isinstance(mask, torch.Tensor):
        assert torch.equal(mask.expand_as(seen[0]), seen[0])


def unsupported_models() -> list[tuple[PreTrainedModel, str]]:
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return [
        (tiny_model("BertLMHeadModel", is_decoder=True), "it is used as a decoder"),
        (tiny_model("GPT2LMHeadModel", add_cross_attention=True), "it attends to an encoder"),
        (
            DistilBertModel(DistilBertConfig(vocab_size=20, dim=8, n_layers=1, n_heads=2)),
            "'distilbert' are not known",
        ),
        (BertForPreTraining(BertConfig(**small)), "no shrunk form of BertForPreTraining"),
    ]


@pytest.mark.parametrize("index", range(4))
def test_models_that_cannot_be_shrunk_are_refused(index: int) -> None:
    model, message = unsupported_models()[index]
    with pytest.raises(UnsupportedModel, match=message):
        architecture_of(model)

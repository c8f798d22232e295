"""A shrunk model computes what the masked one does."""

import copy
import itertools
import re

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
)
from ziplm import UnsupportedModel, UsageError, mask, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.zip_layers import Constant
from ziplm_models import (
    BERT_HEADS,
    GPT2_HEADS,
    HEADS,
    PATTERNS,
    WIDTH,
    labels_for,
    removed_by,
    make_traces,
    outputs_of,
    tiny_model,
    tokens_for,
)


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BERT_HEADS + GPT2_HEADS)
def test_shrunk_equals_masked(name: str, attention: str, pattern: str) -> None:
    model = tiny_model(name, attention)
    levels, traces = removed_by(model, pattern), make_traces(model)
    shrunk, masked = shrink(model, levels, traces), mask(model, levels, traces)
    assert shrunk.config._attn_implementation == attention
    assert [module.groups for module in architecture_of(shrunk).modules(shrunk)] == [
        module.groups - removed
        for module, removed in zip(architecture_of(model).modules(model), levels, strict=True)
    ]
    batch = tokens_for(name)
    assert_same(outputs_of(shrunk, batch), outputs_of(masked, batch))
    if pattern != "nothing":
        assert (outputs_of(shrunk, batch)[0] - outputs_of(model, batch)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", [name for name in BERT_HEADS + GPT2_HEADS if labels_for(name)])
def test_gradients_of_what_is_left_equal_the_masked_ones(name: str, pattern: str) -> None:
    model = tiny_model(name)
    levels, traces = removed_by(model, pattern), make_traces(model)
    shrunk, masked = copy.deepcopy(shrink(model, levels, traces)), mask(model, levels, traces)
    batch = tokens_for(name) | labels_for(name)
    for candidate in (shrunk, masked):
        candidate(**batch).loss.backward()
    expected = {key: parameter.grad for key, parameter in masked.named_parameters()}
    adapter = architecture_of(model)
    for key, parameter in shrunk.named_parameters():
        if parameter.shape == expected[key].shape:
            torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-4, atol=1e-5)
    for module, removed, trace in zip(adapter.modules(model), levels, traces, strict=True):
        if 0 < removed < module.groups:
            layer = adapter.output_layer(shrunk, module)
            full = adapter.output_layer(masked, module)
            got, want = adapter._out_in(layer.weight.grad), adapter._out_in(full.weight.grad)
            torch.testing.assert_close(got, want[:, trace.columns(removed)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_a_dropped_bias_shows(name: str) -> None:
    model = tiny_model(name)
    levels, traces = removed_by(model, "two attentions"), make_traces(model)
    shrunk, masked = shrink(model, levels, traces), mask(model, levels, traces)
    for module in shrunk.modules():
        if isinstance(module, Constant):
            module.bias.data = torch.zeros_like(module.bias)
    batch = tokens_for(name)
    with pytest.raises(AssertionError):
        assert_same(outputs_of(shrunk, batch), outputs_of(masked, batch))


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_swapped_heads_show(name: str) -> None:
    model = tiny_model(name)
    levels, traces = removed_by(model, "some heads"), make_traces(model)
    shrunk, masked = shrink(model, levels, traces), mask(model, levels, traces)
    adapter = architecture_of(shrunk)
    module = adapter.modules(shrunk)[0]
    weight = adapter.weight(shrunk, module)
    with torch.no_grad():
        weight.copy_(weight.roll(module.group_size, dims=1))
    batch = tokens_for(name)
    with pytest.raises(AssertionError):
        assert_same(outputs_of(shrunk, batch), outputs_of(masked, batch))


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_shrinking_twice(name: str) -> None:
    model = tiny_model(name)
    once = shrink(model, removed_by(model, "a whole layer"), make_traces(model))
    traces = make_traces(once)
    levels = [min(module.groups, 2) for module in architecture_of(once).modules(once)]
    twice, masked = shrink(once, levels, traces), mask(once, levels, traces)
    batch = tokens_for(name)
    assert_same(outputs_of(twice, batch), outputs_of(masked, batch))
    assert type(twice) is type(once)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_what_stays_is_shared_and_the_model_is_not_changed(name: str) -> None:
    model = tiny_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    shrunk = shrink(model, removed_by(model, "heads and columns"), make_traces(model))
    shared = {parameter.data_ptr() for parameter in model.parameters()}
    embeddings = shrunk.get_input_embeddings().weight
    assert embeddings.data_ptr() in shared
    assert shrunk.get_output_embeddings().weight is embeddings
    copied = {key for key, parameter in shrunk.named_parameters() if parameter.data_ptr() not in shared}
    changed = r"\.(query|key|value|dense|c_attn|c_fc|c_proj)\.(weight|bias)$"
    assert all(re.search(changed, key) for key in copied - {"cls.predictions.bias"})  # tied, so made anew
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(parameter.is_meta for parameter in shrunk.parameters())
    assert not any(buffer.is_meta for buffer in shrunk.buffers())


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_modules_swapped_in_place_equal_the_shrunk_model(name: str) -> None:
    model = tiny_model(name)
    levels, traces = removed_by(model, "a whole layer"), make_traces(model)
    expected = outputs_of(shrink(model, levels, traces), tokens_for(name))
    dense = outputs_of(model, tokens_for(name))
    adapter = architecture_of(model)
    modules = adapter.modules(model)
    kept = [adapter.parts(model, module) for module in modules]
    for module, removed, trace in zip(modules, levels, traces, strict=True):
        adapter.install(model, module, adapter.build(model, module, trace, removed))
    assert_same(outputs_of(model, tokens_for(name)), expected)
    for module, parts in zip(modules, kept, strict=True):
        adapter.install(model, module, parts)
    assert_same(outputs_of(model, tokens_for(name)), dense)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_the_stream_is_where_the_adapter_says(name: str) -> None:
    """What comes before a module, plus its output, comes before the next one; in BERT, after a norm."""
    model = tiny_model(name)
    adapter = architecture_of(model)
    seen: dict[str, torch.Tensor] = {}

    def keep(key: str, tensor: torch.Tensor) -> None:
        seen[key] = tensor.detach()

    for module in adapter.modules(model):
        point = adapter.stream_before(model, module)
        point.module.register_forward_pre_hook(
            lambda _, args, key=module.name, at=point.argument: keep(f"{key} before", args[at])
        )
        adapter.output_layer(model, module).register_forward_hook(
            lambda _, args, output, key=module.name: keep(f"{key} output", output)
        )
    model(**tokens_for(name))
    names = [module.name for module in adapter.modules(model)]
    for now, following in itertools.pairwise(names):
        after = seen[f"{now} before"] + seen[f"{now} output"]
        if name.startswith("Bert"):
            layer, kind = now.split(".")
            block = adapter.layers(model)[int(layer.removeprefix("layer"))]
            norm = (block.attention.output if kind == "attention" else block.output).LayerNorm
            after = norm(after).detach()
        torch.testing.assert_close(after, seen[f"{following} before"])


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_regression_heads(name: str) -> None:
    model = tiny_model(name, num_labels=1)
    levels, traces = removed_by(model, "a whole layer"), make_traces(model)
    shrunk, masked = copy.deepcopy(shrink(model, levels, traces)), mask(model, levels, traces)
    batch = tokens_for(name) | {"labels": torch.tensor([0.3, -1.0])}
    outputs = [candidate(**batch) for candidate in (shrunk, masked)]
    assert outputs[0].logits.shape == (2, 1)
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs[0].loss, outputs[1].loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_fixed_parameters_are_those_that_nothing_can_remove(name: str) -> None:
    model = tiny_model(name)
    fixed = architecture_of(model).fixed_parameters(model)
    everything_gone = shrink(model, removed_by(model, "everything"), make_traces(model))
    left = architecture_of(everything_gone).fixed_parameters(everything_gone)
    norms_of_removed_branches = 6 * 2 if name.startswith("GPT2") else 0  # pre-LN: they go with their branch
    assert len(fixed) - norms_of_removed_branches == len(left)
    constants = sum(isinstance(module, Constant) for module in everything_gone.modules())
    assert len(left) == len(list(everything_gone.parameters())) - constants


def test_modules_are_listed_in_order() -> None:
    model = tiny_model("GPT2LMHeadModel")
    modules = architecture_of(model).modules(model)
    assert [module.name for module in modules[:3]] == ["layer0.attention", "layer0.ffn", "layer1.attention"]
    assert [(module.groups, module.group_size) for module in modules[:2]] == [(HEADS, 4), (WIDTH, 1)]
    assert architecture_of(model).weight(model, modules[0]).shape == (16, 16)
    assert architecture_of(model).weight(model, modules[1]).shape == (16, WIDTH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda levels, traces: (levels[1:], traces), "5 levels and 6 traces for 6 modules"),
        (
            lambda levels, traces: ([5, *levels[1:]], traces),
            "layer0.attention cannot lose 5 groups; it",
        ),
        (lambda levels, traces: ([-1, *levels[1:]], traces), "layer0.attention cannot lose -1 groups"),
        (lambda levels, traces: ([1, *levels[1:]], [None, *traces[1:]]), "layer0.attention has no trace"),
        (lambda levels, traces: ([1, *levels[1:]], traces[::-1]), "the trace has 24 groups of 1, but layer0"),
    ],
)
def test_bad_levels_are_refused(change: object, message: str) -> None:
    model = tiny_model("BertModel")
    levels, traces = change([0] * 6, make_traces(model))
    with pytest.raises(UsageError, match=message):
        shrink(model, levels, traces)


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

"""Shrinking: what is shared, left and refused. `test_every_architecture` compares outputs."""

import copy
import re

import pytest
import torch
from transformers import (
    PreTrainedModel,
)
from ziplm import UsageError, mask, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.surgery import pruned_parts
from ziplm.architectures.zip_layers import Constant
from ziplm_models import (
    make_traces,
    outputs_of,
    removed_by,
    sizes_left,
    tiny_model,
    tokens_for,
)


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_the_comparison_notices_a_missing_bias(name: str) -> None:
    model = tiny_model(name)
    removed, traces = removed_by(model, "two attentions"), make_traces(model)
    shrunk, masked = shrink(model, removed, traces), mask(model, removed, traces)
    for module in shrunk.modules():
        if isinstance(module, Constant):
            module.bias.data = torch.zeros_like(module.bias)
    batch = tokens_for(name)
    with pytest.raises(AssertionError):
        assert_same(outputs_of(shrunk, batch), outputs_of(masked, batch))


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_unchanged_parameters_are_shared_and_the_model_is_not_changed(name: str) -> None:
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
def test_branches_swapped_in_place_equal_the_shrunk_model(name: str) -> None:
    model = tiny_model(name)
    removed, traces = removed_by(model, "a whole layer"), make_traces(model)
    expected = outputs_of(shrink(model, removed, traces), tokens_for(name))
    dense = outputs_of(model, tokens_for(name))
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    kept = [architecture.parts(model, branch) for branch in branches]
    for branch, size, trace in zip(branches, sizes_left(model, removed), traces, strict=True):
        assert trace is not None
        architecture.install(model, branch, pruned_parts(architecture, model, branch, trace, size))
    assert_same(outputs_of(model, tokens_for(name)), expected)
    for branch, parts in zip(branches, kept, strict=True):
        architecture.install(model, branch, parts)
    assert_same(outputs_of(model, tokens_for(name)), dense)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_a_shrunk_regression_head_equals_the_masked_one(name: str) -> None:
    model = tiny_model(name, num_labels=1)
    removed, traces = removed_by(model, "a whole layer"), make_traces(model)
    shrunk, masked = copy.deepcopy(shrink(model, removed, traces)), mask(model, removed, traces)
    batch = tokens_for(name) | {"labels": torch.tensor([0.3, -1.0])}
    outputs = [candidate(**batch) for candidate in (shrunk, masked)]
    assert outputs[0].logits.shape == (2, 1)
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs[0].loss, outputs[1].loss, rtol=1e-5, atol=1e-5)


def fixed_parameters(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Return the parameters that pruning never changes: those outside the branches, and norms inside."""
    architecture = architecture_of(model)
    prunable = set()
    for branch in architecture.branches(model):
        for part in architecture.parts(model, branch).values():
            norms = [norm for norm in part.modules() if isinstance(norm, torch.nn.LayerNorm)]
            kept = {id(parameter) for norm in norms for parameter in norm.parameters()}
            prunable |= {id(parameter) for parameter in part.parameters()} - kept
    return [parameter for parameter in model.parameters() if id(parameter) not in prunable]


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_fixed_parameters_are_those_that_no_pruning_removes(name: str) -> None:
    model = tiny_model(name)
    fixed = fixed_parameters(model)
    everything_gone = shrink(model, removed_by(model, "everything"), make_traces(model))
    left = fixed_parameters(everything_gone)
    norms_of_removed_branches = (
        6 * 2 if name.startswith("GPT2") else 0
    )  # pre-LN: they are removed with their branch
    assert len(fixed) - norms_of_removed_branches == len(left)
    constants = sum(isinstance(module, Constant) for module in everything_gone.modules())
    assert len(left) == len(list(everything_gone.parameters())) - constants


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda removed, traces: (removed[1:], traces), "there are 5 counts for 6 branches"),
        (
            lambda removed, traces: ([5, *removed[1:]], traces),
            "layer0.attention cannot lose 5 groups; it",
        ),
        (lambda removed, traces: ([-1, *removed[1:]], traces), "layer0.attention cannot lose -1 groups"),
        (lambda removed, traces: ([1, *removed[1:]], [None, *traces[1:]]), "layer0.attention has no trace"),
        (
            lambda removed, traces: ([1, *removed[1:]], traces[::-1]),
            "the trace has 24 groups of 1, but layer0",
        ),
    ],
)
def test_counts_and_traces_that_do_not_fit_the_model_are_refused(change: object, message: str) -> None:
    model = tiny_model("BertModel")
    removed, traces = change([0] * 6, make_traces(model))
    with pytest.raises(UsageError, match=message):
        shrink(model, removed, traces)

"""What every architecture must pass; a new one is added by its settings in `ziplm_models.SETTINGS`.

Each class is tried with a few patterns of removal, and one class of each architecture with all of them. All
combinations are tried with ``pytest -m grid``.
"""

import copy
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from ziplm import load, mask, save, shrink
from ziplm.architectures.base import out_in
from ziplm.architectures.inspection import inspect
from ziplm.architectures.registry import architecture_of, positions_of
from ziplm.architectures.watching import Seen, watched
from ziplm.architectures.zip_classes import MODELLING_FILES, zip_classes
from ziplm_elsewhere import assert_load_without_ziplm
from ziplm_models import (
    DECODERS,
    HIDDEN,
    PATTERNS,
    SETTINGS,
    VOCABULARY,
    attentions_of,
    classes_of,
    labels_for,
    make_traces,
    outputs_of,
    prefix_of,
    removed_by,
    tiny_model,
    tokens_for,
)

CLASSES = [name for prefix in SETTINGS for name in classes_of(prefix)]
MAIN = [
    f"{prefix}{'LMHeadModel' if prefix == 'GPT2' else 'ForCausalLM'}"
    if prefix in DECODERS
    else f"{prefix}ForSequenceClassification"
    for prefix in SETTINGS
]
"""One class of each architecture."""
GENERATORS = [name for name in MAIN if prefix_of(name) in DECODERS]
GRID = [
    pytest.param(
        name,
        attention,
        pattern,
        marks=[] if _is_default else [pytest.mark.grid],
    )
    for name in CLASSES
    for attention in attentions_of(name)
    for pattern in PATTERNS
    for _is_default in [(name in MAIN and attention == attentions_of(name)[-1]) or pattern == "a whole layer"]
]


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def shrunk_model(name: str, pattern: str, attention: str = "eager") -> PreTrainedModel:
    model = tiny_model(name, attention)
    return shrink(model, removed_by(model, pattern), make_traces(model))


def gradient_of(linear: torch.nn.Module) -> torch.Tensor:
    """Return the gradient of a linear layer's weight as (out, in)."""
    return linear.weight.grad if isinstance(linear, torch.nn.Linear) else linear.weight.grad.mT


def test_every_built_in_architecture_is_tried() -> None:
    tried = {getattr(transformers, name).config_class.model_type for name in MAIN}
    assert tried == set(MODELLING_FILES)
    assert {f"Zip{name}" for name in CLASSES} == set(zip_classes())


@pytest.mark.parametrize(("name", "attention", "pattern"), GRID)
def test_shrunk_equals_masked_in_outputs_and_gradients(name: str, attention: str, pattern: str) -> None:
    model = tiny_model(name, attention)
    removed, traces = removed_by(model, pattern), make_traces(model)
    shrunk, masked = copy.deepcopy(shrink(model, removed, traces)), mask(model, removed, traces)
    batch = tokens_for(name)
    assert_same(outputs_of(shrunk, batch), outputs_of(masked, batch))
    if pattern != "nothing":  # the control: removing something changes the outputs
        assert (outputs_of(shrunk, batch)[0] - outputs_of(model, batch)[0]).abs().max() > 1e-3
    if not labels_for(name):
        return
    for candidate in (shrunk, masked):
        candidate(**batch, **labels_for(name)).loss.backward()
    expected = {key: parameter.grad for key, parameter in masked.named_parameters()}
    for key, parameter in shrunk.named_parameters():
        if parameter.shape == expected[key].shape:
            made = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(made, expected[key], rtol=1e-4, atol=1e-5)
    architecture = architecture_of(model)
    for branch, count, trace in zip(architecture.branches(model), removed, traces, strict=True):
        if 0 < count < branch.groups and trace is not None:
            small, full = (architecture.output_layer(one, branch) for one in (shrunk, masked))
            got, wanted = (gradient_of(one) for one in (small, full))
            torch.testing.assert_close(got, wanted[:, trace.columns(count)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAIN)
def test_the_comparison_notices_swapped_heads_and_rows(name: str) -> None:
    model = tiny_model(name)
    removed, traces = removed_by(model, "heads and columns"), make_traces(model)
    wanted = outputs_of(mask(model, removed, traces), tokens_for(name))
    architecture = architecture_of(model)
    for branch in architecture.branches(model)[:2]:
        shrunk = copy.deepcopy(shrink(model, removed, traces))
        spec = architecture.spec(shrunk, branch)
        for path in (spec.output, *(rows.path for rows in spec.rows)):
            wrong = copy.deepcopy(shrunk)
            weight = out_in(architecture.layers(wrong)[branch.layer].get_submodule(path))
            with torch.no_grad():
                axis = 1 if path == spec.output else 0
                weight.copy_(weight.roll(branch.group_size if axis else 1, dims=axis))
            with pytest.raises(AssertionError):
                assert_same(outputs_of(wrong, tokens_for(name)), wanted)


@pytest.mark.parametrize("pattern", ["heads and columns", "a whole layer"])
@pytest.mark.parametrize("name", MAIN)
def test_a_shrunk_model_can_be_shrunk_again(name: str, pattern: str) -> None:
    once = shrunk_model(name, pattern)
    traces = make_traces(once)
    removed = [min(branch.groups, 1) for branch in architecture_of(once).branches(once)]
    twice, masked = shrink(once, removed, traces), mask(once, removed, traces)
    assert_same(outputs_of(twice, tokens_for(name)), outputs_of(masked, tokens_for(name)))
    assert type(twice) is type(once)


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_loads_with_auto_classes_and_with_ziplm(name: str, tmp_path: Path) -> None:
    attention = attentions_of(name)[-1]  # as from_pretrained chooses
    model = shrunk_model(name, "a whole layer", attention)
    save(model, tmp_path / "small")
    expected = outputs_of(copy.deepcopy(model), tokens_for(name))
    auto = getattr(transformers, sys.modules[type(model).__module__].AUTO_CLASSES[type(model)])
    for loaded in (auto.from_pretrained(tmp_path / "small").eval(), load(tmp_path / "small")):
        assert type(loaded) is type(model)
        assert_same(outputs_of(copy.deepcopy(loaded), tokens_for(name)), expected)
    assert inspect(tmp_path / "small") == inspect(model)


def test_checkpoints_load_without_ziplm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {name: shrunk_model(name, "a whole layer", attentions_of(name)[-1]) for name in MAIN}
    assert_load_without_ziplm(models, tmp_path, monkeypatch)


@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "first attention", "everything"])
@pytest.mark.parametrize("name", MAIN)
def test_the_branches_one_after_the_other_compute_the_layers(name: str, pattern: str) -> None:
    """The stream that `watched` reports, and the branches as modules of their own, are those of the model."""
    model = shrunk_model(name, pattern)
    architecture = architecture_of(model)
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    seen: dict[str, Seen] = {}
    branches = architecture.branches(model)
    with ExitStack() as stack, torch.no_grad():
        for branch in branches:
            stack.enter_context(
                watched(architecture, model, branch, lambda one, key=branch.name: seen.update({key: one}))
            )
        states = model(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
    stream = states[0]
    for branch in branches:
        torch.testing.assert_close(seen[branch.name].before, stream, rtol=1e-4, atol=1e-4)
        mask_ = architecture.attention_mask(model, branch, stream)
        with torch.no_grad():
            alone = architecture.branch_module(model, branch)(stream, mask_)
            norm = architecture.norm_after(model, branch)
            after = seen[branch.name].after
            stream = after if norm is None else norm(after)
        torch.testing.assert_close(alone, stream, rtol=1e-4, atol=1e-4)
        if branch.part == "ffn" and branch.layer < len(states) - 2:
            torch.testing.assert_close(stream, states[branch.layer + 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_branch_with_a_past_continues_it(name: str) -> None:
    model = tiny_model(name)
    architecture = architecture_of(model)
    hidden = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(0))
    branch = architecture.branches(model)[2]
    with torch.no_grad():
        whole = architecture.branch_module(model, branch)(
            hidden, architecture.attention_mask(model, branch, hidden)
        )
        for past in (0, 1, 8):
            rest = hidden[:, past:]
            made = architecture.branch_module(model, branch, past=hidden[:, :past])
            mask_ = architecture.attention_mask(model, branch, rest, past)
            for _ in range(2):  # every call starts from the same cache
                torch.testing.assert_close(made(rest, mask_), whole[:, past:], rtol=1e-4, atol=1e-5)
        shorter = architecture.branch_module(model, branch, past=hidden[:, :7])(hidden[:, 8:])
    assert not torch.allclose(shorter, whole[:, 8:], rtol=1e-3)  # the control: the past matters


@pytest.mark.parametrize("left_padding", [False, True])
@pytest.mark.parametrize(
    "pattern", ["nothing", "heads and columns", "first attention", "two attentions", "all attention"]
)
@pytest.mark.parametrize("name", GENERATORS)
def test_generation_with_a_cache_has_the_logits_of_the_masked_model(
    name: str, pattern: str, left_padding: bool
) -> None:
    model = tiny_model(name, "sdpa")
    removed, traces = removed_by(model, pattern), make_traces(model)
    ids = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
    attention_mask = torch.ones_like(ids)
    if left_padding:
        ids[0, :3], attention_mask[0, :3] = 0, 0
    made = [
        one.generate(
            ids,
            attention_mask=attention_mask,
            max_new_tokens=6,
            min_new_tokens=6,
            do_sample=False,
            use_cache=use_cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for one, use_cache in ((shrink(model, removed, traces), True), (mask(model, removed, traces), False))
    ]
    assert torch.equal(made[0].sequences, made[1].sequences)
    for step, expected in zip(made[0].logits, made[1].logits, strict=True):
        torch.testing.assert_close(step, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAIN)
def test_positions_are_those_that_the_model_really_takes(name: str) -> None:
    model = tiny_model(name)
    longest = positions_of(model.config)
    ids = torch.full((1, longest + 1), 5)
    with torch.no_grad():
        model(ids[:, :longest])
        if prefix_of(name) in ("Llama", "Mistral", "Qwen2", "Qwen3", "ModernBert"):
            return  # rotary positions have no end; the number is the one that the model was trained for
        with pytest.raises((IndexError, RuntimeError)):
            model(ids)

"""Heads that are narrower than in the dense model, in every architecture that allows them."""

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from ziplm import BadCheckpoint, UsageError, load, mask, save, shrink
from ziplm.architectures import surgery
from ziplm.architectures.base import Size
from ziplm.architectures.exported import load_exported
from ziplm.architectures.inspection import inspect
from ziplm.architectures.layer_dropping import keep_layers
from ziplm.architectures.registry import architecture_of
from ziplm.stages.export import export_onnx
from ziplm.stages.export_check import check_exported
from ziplm_elsewhere import assert_load_without_ziplm
from ziplm_models import VOCABULARY, attentions_of, outputs_of, tiny_model, tokens_for
from ziplm_widths import NARROWING, ROTARY, make_width_traces, wide_model

MAIN = [f"{prefix}{'LMHeadModel' if prefix == 'GPT2' else 'Model'}" for prefix in NARROWING]
GRID = [(name, attention) for name in MAIN for attention in attentions_of(name)]
PATTERNS = {
    "narrower": ([0, 0, 0, 0, 0, 0], [5, 3, None]),
    "fewer and narrower": ([1, 7, 0, 0, 1, 0], [4, None, 8]),
    "with a removed attention": ([2, 0, 0, 24, 1, 3], [3, 6, 1]),
}
"""Groups that each branch loses, and the width of the heads of each layer."""


def assert_same(first: list[torch.Tensor], second: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def narrow_model(name: str, pattern: str = "fewer and narrower", attention: str = "eager") -> PreTrainedModel:
    model = wide_model(name, attention)
    removed, widths = PATTERNS[pattern]
    return shrink(model, removed, make_width_traces(model), widths)


def test_every_architecture_either_allows_narrower_heads_or_has_rotary_embeddings() -> None:
    for prefix in (*NARROWING, *ROTARY):
        model = tiny_model(f"{prefix}Model")
        attention, ffn = architecture_of(model).specs(model, 0)
        assert (attention.width_path is None) == (prefix in ROTARY), prefix
        assert ffn.width_path is None


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("name", "attention"), GRID)
def test_a_narrower_model_equals_the_masked_one(name: str, attention: str, pattern: str) -> None:
    model = wide_model(name, attention)
    removed, widths = PATTERNS[pattern]
    traces = make_width_traces(model)
    small, masked = shrink(model, removed, traces, widths), mask(model, removed, traces, widths)
    assert_same(outputs_of(small, tokens_for(name)), outputs_of(masked, tokens_for(name)), 3e-5)
    # The controls: the model has changed, and heads alone would be another one.
    heads = shrink(model, removed, traces)
    for other in (model, heads):
        assert (
            outputs_of(small, tokens_for(name))[0] - outputs_of(other, tokens_for(name))[0]
        ).abs().max() > 1e-3
    kept = [branch.size for branch in architecture_of(small).branches(small)][0::2]
    wanted = [
        Size(2 - count, 8 if width is None or count == 2 else width)
        for count, width in zip(removed[0::2], widths, strict=True)
    ]
    assert kept == wanted


@pytest.mark.parametrize("name", MAIN)
def test_the_full_width_through_all_rotations_is_the_dense_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the full width the closed forms only change the basis inside heads, which changes nothing."""
    monkeypatch.setattr(surgery, "narrowing", lambda branch, trace, size: trace)
    model = wide_model(name)
    expected = outputs_of(model, tokens_for(name))
    architecture = architecture_of(model)
    for branch, trace in zip(architecture.branches(model), make_width_traces(model), strict=True):
        if branch.part == "attention":
            parts = surgery.pruned_parts(architecture, model, branch, trace, branch.size)
            before = architecture.parts(model, branch)
            architecture.install(model, branch, parts)
            assert any(
                (one - other).abs().max() > 0.01
                for name in parts
                for one, other in zip(parts[name].parameters(), before[name].parameters(), strict=True)
            )
    assert_same(outputs_of(model, tokens_for(name)), expected)


@pytest.mark.parametrize(
    "settings", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}]
)
def test_gpt2_with_other_scaling_equals_the_masked_model(settings: dict[str, bool]) -> None:
    model = wide_model("GPT2LMHeadModel", **settings)
    removed, widths = PATTERNS["with a removed attention"]
    traces = make_width_traces(model)
    small, masked = shrink(model, removed, traces, widths), mask(model, removed, traces, widths)
    assert_same(outputs_of(small, tokens_for("GPT2")), outputs_of(masked, tokens_for("GPT2")), 3e-5)
    scaling = small.transformer.h[1].attn.scaling
    assert scaling == pytest.approx(1.0 if "scale_attn_weights" in settings else 6**-0.5 / 2)


@pytest.mark.parametrize("name", MAIN)
def test_a_narrower_model_can_be_made_smaller_again(name: str) -> None:
    once = narrow_model(name)
    traces = make_width_traces(once)
    twice, masked = (make(once, [0, 1, 1, 0, 1, 0], traces, [2, None, None]) for make in (shrink, mask))
    assert_same(outputs_of(twice, tokens_for(name)), outputs_of(masked, tokens_for(name)), 3e-5)
    assert twice.config.zip_head_widths == [2, 8, 8]


@pytest.mark.parametrize("name", MAIN)
def test_a_checkpoint_with_narrower_heads_loads_with_auto_classes_and_with_ziplm(
    name: str, tmp_path: Path
) -> None:
    model = narrow_model(name, attention=attentions_of(name)[-1])
    save(model, tmp_path / "small")
    expected = outputs_of(copy.deepcopy(model), tokens_for(name))
    auto = getattr(transformers, sys.modules[type(model).__module__].AUTO_CLASSES[type(model)])
    for loaded in (auto.from_pretrained(tmp_path / "small").eval(), load(tmp_path / "small")):
        assert_same(outputs_of(copy.deepcopy(loaded), tokens_for(name)), expected)
    found = inspect(tmp_path / "small")
    assert found == inspect(model)
    assert (found.heads, found.head_widths) == ([1, 2, 1], [4, 8, 8])


def test_checkpoints_with_narrower_heads_load_without_ziplm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: narrow_model(name, attention=attentions_of(name)[-1]) for name in MAIN}
    assert_load_without_ziplm(models, tmp_path, monkeypatch)


def test_a_checkpoint_from_before_narrower_heads_loads(tmp_path: Path) -> None:
    model = wide_model("BertModel")
    small = shrink(model, [1, 3, 0, 0, 2, 0], make_width_traces(model))
    save(small, tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert config.pop("zip_head_widths") == [8, 8, 8]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    loaded = load(tmp_path / "old")
    assert_same(outputs_of(loaded, tokens_for("BertModel")), outputs_of(small, tokens_for("BertModel")))


@pytest.mark.parametrize(
    "widths", [[4, 8], [4, 8, 9], [0, 8, 8], [4, 8, -1], [4, 8, True], [4, 8, 8.0], "488", {"0": 4}]
)
def test_widths_that_do_not_fit_are_refused_before_anything_is_allocated(
    tmp_path: Path, widths: object
) -> None:
    save(narrow_model("BertModel"), tmp_path / "small")
    file = tmp_path / "small" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "zip_head_widths": widths}))
    with pytest.raises(BadCheckpoint, match="zip_head_widths"):
        load(tmp_path / "small")


def test_widths_that_the_weights_do_not_have_are_refused(tmp_path: Path) -> None:
    save(narrow_model("BertModel"), tmp_path / "small")
    file = tmp_path / "small" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "zip_head_widths": [4, 8, 4]}))
    with pytest.raises(BadCheckpoint, match="has shape"):
        load(tmp_path / "small")


def test_heads_with_rotary_embeddings_keep_their_width(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM")
    traces = make_width_traces(tiny_model("BertModel"))
    with pytest.raises(UsageError, match="keep their width"):
        shrink(model, [0] * 6, traces, [2, None, None])
    save(shrink(model, [0] * 6, [None] * 6), tmp_path / "small")
    file = tmp_path / "small" / "config.json"
    assert json.loads(file.read_text()).get("zip_head_widths") is None
    file.write_text(json.dumps({**json.loads(file.read_text()), "zip_head_widths": [4, 8, 8]}))
    with pytest.raises(BadCheckpoint, match="keep their width"):
        load(tmp_path / "small")


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = wide_model("BertModel")
    traces = make_width_traces(model)
    for widths, message in (
        ([4, 4], "there are 2 widths of heads for 3 layers"),
        ([9, None, None], "layer0.attention cannot be 9 wide"),
        ([0, None, None], "layer0.attention cannot be 0 wide"),
    ):
        with pytest.raises(UsageError, match=message):
            shrink(model, [0] * 6, traces, widths)
    only_heads = [getattr(trace, "heads", trace) for trace in traces]
    with pytest.raises(UsageError, match="give an AttentionTrace"):
        shrink(model, [0] * 6, only_heads, [4, None, None])


def test_layers_can_be_dropped_from_a_narrower_model(tmp_path: Path) -> None:
    small = keep_layers(narrow_model("BertModel"), [0, 2])
    assert small.config.zip_head_widths == [4, 8]
    save(small, tmp_path / "dropped")
    expected = outputs_of(small, tokens_for("BertModel"))
    assert_same(outputs_of(load(tmp_path / "dropped"), tokens_for("BertModel")), expected)


@pytest.mark.parametrize("left_padding", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_generation_with_a_cache_has_the_logits_of_the_masked_model(pattern: str, left_padding: bool) -> None:
    model = wide_model("GPT2LMHeadModel", "sdpa")
    removed, widths = PATTERNS[pattern]
    traces = make_width_traces(model)
    ids = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
    attention_mask = torch.ones_like(ids)
    if left_padding:
        ids[0, :3], attention_mask[0, :3] = 0, 0
    made = [
        make(model, removed, traces, widths).generate(
            ids,
            attention_mask=attention_mask,
            max_new_tokens=6,
            min_new_tokens=6,
            do_sample=False,
            use_cache=use_cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for make, use_cache in ((shrink, True), (mask, False))
    ]
    assert torch.equal(made[0].sequences, made[1].sequences)
    for step, expected in zip(made[0].logits, made[1].logits, strict=True):
        torch.testing.assert_close(step, expected, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "MPNetModel", "GPT2LMHeadModel"])
def test_a_narrower_model_exports(name: str, tmp_path: Path) -> None:
    model = narrow_model(name, "with a removed attention", attentions_of(name)[-1])
    exported = load_exported(export_onnx(model, tmp_path / "model.onnx"), 1, model.config)
    found = check_exported(model, exported)
    assert 0 < found.largest < 1e-4 < found.scale
    if name == "GPT2LMHeadModel":
        ids = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
        asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
        assert torch.equal(exported.generate(ids, **asked), model.generate(ids, **asked))

"""Generation with a cache gives the logits of the whole sequence, whichever branches were removed."""

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import mask, shrink
from ziplm_models import VOCABULARY, make_traces, removed_by, tiny_model

PATTERNS = [
    "nothing",
    "heads and columns",
    "first attention",
    "two attentions",
    "all attention",
    "everything",
]
WAYS: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 10},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
    "beams, static cache": {"num_beams": 2, "cache_implementation": "static"},
    "chunked prefill": {"prefill_chunk_size": 2},
}


def prompts(left_padding: bool) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
    attention_mask = torch.ones_like(ids)
    if left_padding:
        ids[0, :3], attention_mask[0, :3] = 0, 0
    return ids, attention_mask


def generate(
    model: PreTrainedModel, left_padding: bool, **way: object
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    ids, attention_mask = prompts(left_padding)
    torch.manual_seed(0)
    result = model.generate(
        ids,
        attention_mask=attention_mask,
        max_new_tokens=6,
        min_new_tokens=6,
        output_logits=True,
        return_dict_in_generate=True,
        **way,
    )
    return result.sequences, list(result.logits)


@pytest.mark.parametrize("left_padding", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_step_has_the_logits_of_the_masked_model(pattern: str, way: str, left_padding: bool) -> None:
    model = tiny_model("GPT2LMHeadModel", "sdpa", scale_attn_by_inverse_layer_idx=True)
    removed, traces = removed_by(model, pattern), make_traces(model)
    shrunk, masked = shrink(model, removed, traces), mask(model, removed, traces)
    without_cache = {
        key: value for key, value in WAYS[way].items() if key in ("do_sample", "top_k", "num_beams")
    }
    sequences, steps = generate(shrunk, left_padding, **WAYS[way])
    expected_sequences, expected_steps = generate(masked, left_padding, use_cache=False, **without_cache)
    assert torch.equal(sequences, expected_sequences)
    assert len(steps) == len(expected_steps) == 6
    for step, expected in zip(steps, expected_steps, strict=True):
        torch.testing.assert_close(step, expected, rtol=1e-4, atol=1e-5)


def assert_pieces_make_up_the_whole(model: PreTrainedModel) -> None:
    ids, _ = prompts(left_padding=False)
    cache, pieces = None, []
    for piece in ids.split([2, 3, 1], dim=1):
        output = model(piece, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        pieces.append(output.logits)
    assert cache.get_seq_length() == ids.shape[1]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_sequence_in_pieces_has_the_logits_of_the_whole(pattern: str) -> None:
    model = tiny_model("GPT2LMHeadModel", scale_attn_by_inverse_layer_idx=True)
    assert_pieces_make_up_the_whole(shrink(model, removed_by(model, pattern), make_traces(model)))


def test_without_renumbered_caches_the_pieces_differ_from_the_whole() -> None:
    model = tiny_model("GPT2LMHeadModel")
    shrunk = shrink(model, removed_by(model, "first attention"), make_traces(model))
    for index, block in enumerate(shrunk.transformer.h):
        block.attn.layer_idx = index
    with pytest.raises((RuntimeError, AssertionError)):
        assert_pieces_make_up_the_whole(shrunk)


def test_the_scale_by_layer_index_stays_that_of_the_dense_model() -> None:
    model = tiny_model("GPT2LMHeadModel", scale_attn_by_inverse_layer_idx=True)
    shrunk = shrink(model, removed_by(model, "first attention"), make_traces(model))
    dense, left = model.transformer.h[2].attn, shrunk.transformer.h[2].attn
    assert (left.layer_idx, dense.layer_idx) == (1, 2)
    assert left.scaling == dense.scaling == pytest.approx(4**-0.5 / 3)

"""A model with dropped layers computes what the kept layers compute one after the other."""

from typing import Any

import pytest
import torch
from ziplm import UsageError, shrink
from ziplm.architectures.layer_dropping import evenly_spaced, keep_layers
from ziplm.architectures.registry import architecture_of
from ziplm_models import LAYERS, make_traces, outputs_of, removed_by, tiny_model, tokens_for

CLASSES = ["BertForSequenceClassification", "GPT2LMHeadModel"]


class Skip(torch.nn.Module):
    """A layer that returns its input."""

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden


@pytest.mark.parametrize("pattern", ["nothing", "heads and columns"])
@pytest.mark.parametrize("kept", [[0], [2], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("name", CLASSES)
def test_the_outputs_are_those_of_the_model_whose_other_layers_do_nothing(
    name: str, kept: list[int], pattern: str
) -> None:
    model = tiny_model(name)
    model = shrink(model, removed_by(model, pattern), make_traces(model))
    small = keep_layers(model, kept)
    assert len(architecture_of(small).layers(small)) == len(kept) == small.config.num_hidden_layers
    dense_outputs = outputs_of(model, tokens_for(name))
    layers = model.base_model.h if name.startswith("GPT2") else model.base_model.encoder.layer
    for index in set(range(LAYERS)) - set(kept):
        layers[index] = Skip()
    made, wanted = outputs_of(small, tokens_for(name)), outputs_of(model, tokens_for(name))
    for one, other, dense in zip(made, wanted, dense_outputs, strict=True):
        torch.testing.assert_close(one, other)
        if len(kept) < LAYERS:
            assert not torch.allclose(one, dense, rtol=1e-3)  # the control: dropping layers matters


def test_a_decoder_with_dropped_layers_generates_with_its_cache() -> None:
    small = keep_layers(tiny_model("GPT2LMHeadModel"), [1, 2])
    prompt = torch.tensor([[5, 6, 7]])
    made = small.generate(prompt, max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(prompt))
    again = small.generate(
        prompt, max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(prompt), use_cache=False
    )
    assert torch.equal(made, again)


@pytest.mark.parametrize("kept", [[], [1, 0], [0, 0], [3], [-1]])
def test_wrong_indices_are_refused(kept: list[int]) -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        keep_layers(tiny_model("BertModel"), kept)


def test_even_spacing_keeps_the_ends() -> None:
    assert [evenly_spaced(6, count) for count in (1, 2, 3, 6)] == [[5], [0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5]]

"""FLOPs are those of one measurement in the setting's regime."""

from typing import Any

import pytest
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.costs import branch_costs
from ziplm.stages.levels import branch_levels
from ziplm_models import tiny_model
from ziplm_pipeline import DECODER


def flops(**setting: Any) -> list[list[float]]:
    model = tiny_model(DECODER)
    architecture = architecture_of(model)
    return branch_costs(architecture, model, branch_levels(architecture, model), Setting(**setting))["flops"]


def scaled_sum(parts: list[tuple[float, list[list[float]]]]) -> list[list[float]]:
    first = parts[0][1]
    return [
        [sum(share * costs[row][level] for share, costs in parts) for level in range(len(first[row]))]
        for row in range(len(first))
    ]


def close(one: list[list[float]], other: list[list[float]]) -> bool:
    return all(row == pytest.approx(also) for row, also in zip(one, other, strict=True))


def test_latency_is_the_mean_over_lengths() -> None:
    single = [flops(batch_size=1, lengths=(length,)) for length in (5, 20)]
    both = flops(regime="latency", lengths=(5, 20))
    assert close(both, scaled_sum([(0.5, single[0]), (0.5, single[1])]))
    assert not close(both, single[1])  # control: the lengths matter


def test_a_generation_of_one_token_is_the_forward_pass_of_its_prompt() -> None:
    made = flops(regime="generate", lengths=(7,), new_tokens=1)
    assert close(made, flops(batch_size=1, lengths=(7,)))


def test_each_further_token_adds_one_token_that_attends_to_all_before_it() -> None:
    """The sum over steps, counted by hand for attention (4 of 16 columns a head) and FFN."""
    two = flops(regime="generate", lengths=(7,), new_tokens=2)
    one = flops(regime="generate", lengths=(7,), new_tokens=1)
    token = flops(batch_size=1, lengths=(1,))
    for place, (more, less, single) in enumerate(zip(two, one, token, strict=True)):
        heads = 4 if place % 2 == 0 else 0  # every second branch is an attention, with four heads
        beyond = 4 * (8 - 1) * 4 * heads  # eight keys rather than one, four columns to a head
        assert more[0] - less[0] == pytest.approx(single[0] + beyond)

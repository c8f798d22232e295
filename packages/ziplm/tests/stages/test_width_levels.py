"""Levels, costs and times of narrower heads by definition."""

from typing import Any

import pytest
import torch
from latency_profiler import Environment, LatencyCurve, LatencyTable
from transformers import PreTrainedModel
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.costs import branch_costs
from ziplm.stages.levels import best_levels, branch_levels, head_widths, seconds_of
from ziplm.stages.shrink import shrink_to_sizes
from ziplm.stages.sized_branches import measured_sizes
from ziplm_models import tiny_model
from ziplm_pipeline import KnownScore, MadeUpTask
from ziplm_widths import make_width_traces, wide_model

TASK = MadeUpTask(KnownScore())
WIDTHS = [8, 5, 2]


def test_widths_are_multiples_of_eight_from_sixteen_up() -> None:
    assert head_widths(64) == [64, 56, 48, 40, 32, 24, 16]
    assert head_widths(32) == [32, 24, 16]
    assert head_widths(20) == [20, 16]
    assert head_widths(16) == [16]
    assert head_widths(4) == [4]
    assert head_widths(64, round_to=16) == [64, 48, 32, 16]
    assert head_widths(64, round_to=12) == [64, 48, 24]
    assert head_widths(64, round_to=64) == [64]


def table_of(**curves: dict[int, float]) -> LatencyTable:
    made = {
        name.replace("_", "@"): LatencyCurve(tuple(times), tuple(times.values()))
        for name, times in curves.items()
    }
    return LatencyTable(Environment.current(), 0.0, made)


TABLE = table_of(attention={4: 8.0, 3: 6.2, 2: 4.4, 1: 2.6, 0: 0.5}, attention_16={4: 3.0, 2: 2.0, 1: 1.2})


def test_times_of_widths_are_interpolated() -> None:
    for size, expected in {
        Size(4, 32): 8.0,
        Size(4, 16): 3.0,
        Size(3, 16): 2.5,
        Size(4, 24): 5.5,
        Size(1, 20): 1.55,
        Size(0, 16): 0.5,
    }.items():
        assert seconds_of(TABLE, "attention", size, 32) == pytest.approx(expected), size
    only_heads = LatencyTable(TABLE.environment, 0.0, {"attention": TABLE.curves["attention"]})
    assert seconds_of(only_heads, "attention", Size(4, 16), 32) == pytest.approx(4.4)


def narrow_levels(table: LatencyTable) -> Any:
    model = tiny_model("BertModel", hidden_size=128)
    widths = {f"layer{layer}.attention": [32, 24, 16] for layer in range(3)}
    return branch_levels(architecture_of(model), model, 1, widths, table)[0]


def test_levels_combine_numbers_and_widths_of_heads_that_the_table_knows() -> None:
    levels = narrow_levels(TABLE)
    assert levels.sizes == (
        *(Size(heads, width) for width in (32, 24, 16) for heads in (4, 3, 2, 1)),
        Size(0, 32),
    )
    assert levels.may_narrow
    without = narrow_levels(LatencyTable(TABLE.environment, 0.0, {"attention": TABLE.curves["attention"]}))
    assert without.sizes == tuple(Size(heads, 32) for heads in (4, 3, 2, 1, 0))
    assert not without.may_narrow


@pytest.mark.parametrize("seed", range(5))
def test_the_best_levels_are_those_that_no_other_beats(seed: int) -> None:
    levels = narrow_levels(TABLE)
    generator = torch.Generator().manual_seed(seed)
    priors = [torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    for prior in priors:
        prior[0, 0] = 0.0
        prior[:, -1] = 2.0
    best = best_levels(levels, TABLE, priors)
    times = {size: levels.seconds_of(TABLE, size) for size in levels.sizes}
    for size in levels.sizes:
        beaten = [
            any(
                levels.harm(prior, other) <= levels.harm(prior, size) and times[other] <= times[size]
                for other in levels.sizes
                if other != size
            )
            for prior in priors
        ]
        assert (size in best.sizes) == (not all(beaten)), size
    assert (best.sizes[0], best.sizes[-1]) == (Size(4, 32), Size(0, 32))
    ordered = [times[size] for size in best.sizes]
    assert ordered == sorted(ordered, reverse=True)
    assert len(best.sizes) < len(levels.sizes)


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "MPNetModel", "DistilBertModel"])
def test_parameters_of_narrower_heads_are_those_of_the_shrunk_model(name: str) -> None:
    model = wide_model(name)
    architecture = architecture_of(model)
    widths = {branch.name: [8, 5, 3] for branch in architecture.branches(model) if branch.part == "attention"}
    table = table_of(attention_3={2: 1.0, 1: 0.5})
    levels = branch_levels(architecture, model, 1, widths, table)
    params = branch_costs(architecture, model, levels, Setting(batch_size=2, lengths=(5,)))["params"]
    traces = make_width_traces(model)
    before = parameters_in(architecture.layers(model)[0])
    for size, count in zip(levels[0].sizes, params[0], strict=True):
        sizes = [size, *(own.branch.size for own in levels[1:])]
        small = shrink_to_sizes(model, sizes, traces)
        left = parameters_in(architecture.layers(small)[0])
        assert params[0][0] - count == before - left, size


def parameters_in(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def test_a_table_measures_few_sizes_of_narrower_heads() -> None:
    def sizes(model: PreTrainedModel, narrow: bool = True, round_to: int = 1) -> dict[str, list[int]]:
        found = measured_sizes(architecture_of(model), model, "attention", round_to, narrow)
        return {name: own.groups for name, own in found.items()}

    heads = list(range(12, -1, -1))
    wide = tiny_model("BertModel", hidden_size=768, num_attention_heads=12, num_hidden_layers=1)
    few = [12, 9, 6, 3, 1]
    assert sizes(wide) == {"attention": heads, "attention@32": few, "attention@16": few}
    assert sizes(wide, round_to=24) == {"attention": heads, "attention@24": few}
    assert sizes(wide, narrow=False) == {"attention": heads}
    assert sizes(tiny_model("BertModel")) == {"attention": [4, 3, 2, 1, 0]}
    assert set(sizes(tiny_model("LlamaModel", head_dim=64))) == {"attention"}

"""Parameters, bytes and floating point operations of levels equal those counted on shrunk models."""

import copy
import math

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import shrink
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.costs import branch_costs
from ziplm.stages.levels import BranchLevels
from ziplm_clock import Products
from ziplm_models import HIDDEN, PATTERNS, VOCABULARY, make_traces, removed_by, sizes_of, tiny_model
from ziplm_pipeline import ARCHITECTURES

SETTING = Setting(batch_size=3, lengths=(10,))
TOKENS, LENGTH = 30, 10
HEAD = 4  # columns of a head


def costs_of(model: PreTrainedModel, removed: list[int], setting: Setting = SETTING) -> dict[str, float]:
    """Return the summed costs of levels that lose the given numbers of groups."""
    architecture = architecture_of(model)
    # With every size allowed, a level is the number of groups removed.
    levels = [
        BranchLevels(branch, tuple(Size(left, branch.group_size) for left in range(branch.groups, -1, -1)))
        for branch in architecture.branches(model)
    ]
    costs = branch_costs(architecture, model, levels, setting)
    return {
        name: math.fsum(row[level] for row, level in zip(rows, removed, strict=True))
        for name, rows in costs.items()
    }


def layer_parameters(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    return [p for layer in architecture_of(model).layers(model) for p in layer.parameters()]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_parameters_are_those_of_the_shrunk_layers(name: str, pattern: str) -> None:
    model = tiny_model(name)
    removed = removed_by(model, pattern)
    small = shrink(model, removed, make_traces(model))
    assert costs_of(model, removed)["params"] == sum(p.numel() for p in layer_parameters(small))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_of_a_model_that_was_shrunk_before(name: str) -> None:
    """Some of its branches are removed, others have a single group."""
    dense = tiny_model(name)
    model = shrink(dense, [0, 23, 3, 0, 4, 24], make_traces(dense))
    assert sizes_of(model) == {"attention": [4, 1, 0], "ffn": [1, 24, 0]}
    for removed in ([0] * 6, [1, 1, 0, 5, 0, 0], [2, 0, 1, 23, 0, 0], [4, 1, 1, 24, 0, 0]):
        small = shrink(model, removed, make_traces(model))
        assert costs_of(model, removed)["params"] == sum(p.numel() for p in layer_parameters(small))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "a whole layer"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_the_shrunk_layers_in_the_measured_dtype(
    name: str, pattern: str, dtype: str
) -> None:
    model = tiny_model(name)
    removed = removed_by(model, pattern)
    small = copy.deepcopy(shrink(model, removed, make_traces(model))).to(dtype=getattr(torch, dtype))
    counted = sum(p.numel() * p.element_size() for p in layer_parameters(small))
    assert costs_of(model, removed, Setting(dtype=dtype))["bytes"] == counted


def flops_by_hand(heads: int, width: int) -> int:
    """Count the operations of one layer, with two for each weight and each bias of a removable row."""
    projections = 4 * 2 * TOKENS * HIDDEN * (heads * HEAD)
    between_tokens = 2 * 2 * TOKENS * LENGTH * (heads * HEAD)  # queries with keys, probabilities with values
    first_biases = 2 * TOKENS * (3 * heads * HEAD + width)
    return projections + between_tokens + 2 * 2 * TOKENS * HIDDEN * width + first_biases


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_flops_equal_a_count_by_hand(name: str, pattern: str) -> None:
    model = tiny_model(name)
    removed = removed_by(model, pattern)
    sizes = sizes_of(shrink(model, removed, make_traces(model)))
    counted = sum(map(flops_by_hand, sizes["attention"], sizes["ffn"]))
    assert costs_of(model, removed)["flops"] == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_flops_are_twice_the_multiplications_of_matrix_products(name: str, pattern: str) -> None:
    """Embeddings and head are not counted, so that only the difference to the empty model is compared."""
    model = tiny_model(name)
    removed = removed_by(model, pattern)
    tokens = torch.randint(VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(0))

    def multiplications(lost: list[int]) -> int:
        small = shrink(model, lost, make_traces(model))
        with torch.no_grad(), Products() as counter:
            small(tokens)
        return counter.count

    sizes = sizes_of(shrink(model, removed, make_traces(model)))
    biases = 2 * TOKENS * (3 * HEAD * sum(sizes["attention"]) + sum(sizes["ffn"]))
    counted = 2 * (multiplications(removed) - multiplications(removed_by(model, "everything")))
    assert costs_of(model, removed)["flops"] == pytest.approx(counted + biases, rel=1e-12)


def test_costs_depend_on_the_setting() -> None:
    model = tiny_model(ARCHITECTURES[0])
    nothing = [0] * 6
    plain, longer = costs_of(model, nothing), costs_of(model, nothing, Setting(3, (20,)))
    assert longer["flops"] > 2 * plain["flops"]  # attention grows with the square of the length
    assert longer["params"] == plain["params"]
    assert costs_of(model, nothing, Setting(6, (10,)))["flops"] == 2 * plain["flops"]

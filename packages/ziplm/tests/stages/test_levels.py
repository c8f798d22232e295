"""The grids of sizes, and the levels of the branches of a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ziplm import shrink
from ziplm.architectures.registry import architecture_of
from ziplm.stages.levels import branch_levels, size_grid
from ziplm_models import make_traces, tiny_model
from ziplm_pipeline import ARCHITECTURES


@given(st.integers(1, 5000))
def test_the_grid_descends_from_the_dense_size_to_zero(dense: int) -> None:
    for kind in ("attention", "ffn"):
        sizes = size_grid(kind, dense)  # type: ignore[arg-type]
        assert sizes[0] == dense
        assert sizes[-1] == 0
        assert sizes == sorted(set(sizes), reverse=True)
    assert size_grid("attention", dense) == list(range(dense, -1, -1))


def test_the_ffn_grid_is_that_of_the_paper() -> None:
    sizes = size_grid("ffn", 3072)
    assert sizes[:2] == [3072, 2764]
    assert {302, 33} <= set(sizes)
    assert len(sizes) == 45


@given(st.integers(1, 5000), st.integers(1, 128))
def test_rounded_widths_are_the_grid_rounded_down(dense: int, round_to: int) -> None:
    rounded = size_grid("ffn", dense, round_to)
    multiples = {width - width % round_to for width in size_grid("ffn", dense)}
    assert rounded == sorted({dense, *multiples}, reverse=True)
    assert all(width % round_to == 0 for width in rounded[1:])


def test_only_ffn_widths_are_rounded() -> None:
    assert size_grid("ffn", 24, 8) == [24, 16, 8, 0]
    assert size_grid("ffn", 20, 8) == [20, 16, 8, 0]
    assert [width for width in size_grid("ffn", 24) if width % 8] != []  # control
    assert size_grid("attention", 12, 8) == list(range(12, -1, -1))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_levels_of_a_branch_start_with_its_current_size(name: str) -> None:
    dense = tiny_model(name)
    model = shrink(dense, [1, 7, 4, 24, 0, 8], make_traces(dense))
    levels = branch_levels(architecture_of(model), model, round_to=8)
    assert [tuple(size.groups for size in own.sizes) for own in levels] == [
        (3, 2, 1, 0),
        (17, 16, 8, 0),  # the current size stays, though it is no multiple
        (0,),
        (0,),
        (4, 3, 2, 1, 0),
        (16, 8, 0),
    ]
    assert all(size.width == own.branch.group_size for own in levels for size in own.sizes)
    unrounded = branch_levels(architecture_of(model), model)
    assert any(size.groups % 8 for size in unrounded[1].sizes[1:])  # control

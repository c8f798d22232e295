"""The grids of sizes."""

from hypothesis import given
from hypothesis import strategies as st
from ziplm.stages.levels import size_grid


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

"""Parsing and checking of sizes, and latency curves."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_profiler import LatencyCurve, SizeError, TableError, Timing, geometric_sizes, parse_sizes


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, seconds, seconds, seconds, 0.0, 60, 1, "rel_error")


def test_grid_of_the_paper_has_44_widths_and_0() -> None:
    sizes = geometric_sizes(3072)
    paper = [int(3072 * (1 - round(1 - 0.9**i, 4))) for i in range(44)]
    assert sizes == (*paper, 0)
    assert (len(sizes), sizes[:3], sizes[-2:]) == (45, (3072, 2764, 2488), (33, 0))
    assert {1814, 1322, 302, 130, 76, 33} <= set(sizes)


@given(st.integers(1, 5000), st.floats(0.05, 0.95))
def test_grids_strictly_fall_to_0(largest: int, ratio: float) -> None:
    sizes = geometric_sizes(largest, ratio)
    assert sizes[0] == largest
    assert sizes[-1] == 0
    assert all(a > b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("12,8, 4,0", (12, 8, 4, 0)),
        ("0,4,12", (12, 4, 0)),
        ("3..0", (3, 2, 1, 0)),
        ("1..3", (3, 2, 1)),
        ("7", (7,)),
        ("100 * .5^i", (100, 50, 25, 12, 6, 3, 1, 0)),
    ],
)
def test_sizes_are_parsed(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12,4,8,0", "sizes are unsorted or repeated: 8 comes after 4; use falling sizes, such as 12,8,4,0"),
        ("4,8,6", "sizes are unsorted or repeated: 6 comes after 8"),
        ("4,4", "sizes are unsorted or repeated: 4 comes after 4"),
        ("4,0,-1", "size -1 is negative"),
        ("2..-2", "size -1 is negative"),
        ("a lot", "cannot parse sizes 'a lot'; write a list 12,8,4,0"),
        ("3072*1.5^i", "cannot parse sizes"),
        ("0*0.5^i", "cannot make a grid with largest size 0"),
        ("", "cannot parse sizes"),
    ],
)
def test_invalid_sizes_are_reported(text: str, message: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_sizes(text)
    assert message in str(caught.value)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_fit_is_the_nearest_monotone_curve(measured: list[float]) -> None:
    sizes = tuple(range(len(measured) - 1, -1, -1))
    curve = LatencyCurve.fit(sizes, tuple(timing(seconds) for seconds in measured))
    fitted = np.array(curve.seconds)
    assert np.all(np.diff(fitted) <= 0)
    assert min(measured) * (1 - 1e-12) <= fitted.min()
    assert fitted.max() <= max(measured) * (1 + 1e-12)
    assert np.sum(fitted) == pytest.approx(
        np.sum(measured)
    )  # a least-squares fit replaces pooled times by their mean
    # Two other monotone curves are at least as far away: the sorted times, and their mean.
    for other in (sorted(measured, reverse=True), [float(np.mean(measured))] * len(measured)):
        assert (
            np.sum((fitted - measured) ** 2) <= np.sum((np.array(other) - measured) ** 2) * (1 + 1e-9) + 1e-12
        )
    if measured == sorted(measured, reverse=True):
        assert np.allclose(fitted, measured, rtol=1e-12)


def test_curve_is_exact_at_measured_sizes_and_linear_in_between() -> None:
    curve = LatencyCurve((12, 4, 0), (3.0, 2.0, 0.5))
    assert [curve(size) for size in (12, 4, 0, 8, 6, 2)] == [3.0, 2.0, 0.5, 2.5, 2.25, 1.25]
    assert curve.speedups == (1.0, 1.5, 6.0)
    assert str(curve) == "12: 3 s, 4: 2 s, 0: 500 ms"


def test_curve_does_not_extrapolate() -> None:
    curve = LatencyCurve((12, 4), (3.0, 2.0))
    for size in (13, 3, -1, float("nan")):
        with pytest.raises(SizeError, match="is outside the measured range; use sizes from 4 to 12"):
            curve(size)


@pytest.mark.parametrize(
    ("sizes", "seconds", "error"),
    [
        ((4, 8), (1.0, 2.0), SizeError),
        ((8, 4), (1.0, 2.0), TableError),
        ((8, 4), (1.0,), TableError),
        ((8, 4), (1.0, float("nan")), TableError),
        ((8, 4), (1.0, -0.5), TableError),
        ((8, 4.5), (1.0, 0.5), SizeError),
        ((), (), SizeError),
    ],
)
def test_invalid_curves_are_rejected(
    sizes: tuple[int, ...], seconds: tuple[float, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        LatencyCurve(sizes, seconds)


def test_sizes_that_floats_cannot_represent_are_rejected() -> None:
    with pytest.raises(SizeError, match="a size has 201 digits; the largest allowed size is"):
        parse_sizes(f"1{'0' * 200},0")

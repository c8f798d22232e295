"""Targets of a run: their names, their order, and conflicts between them."""

from typing import Any

import pytest
from ziplm import Options, UsageError
from ziplm.options.targets import Target, make_targets


def names_of(**values: Any) -> list[str]:
    return [target.name for target in Options(model="m", task="sst2", output="o", **values).targets()]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Target("speedup", 2.0), "2x"),
        (Target("speedup", 1.25), "1.25x"),
        (Target("latency", 5.5), "5.5ms"),
        (Target("recover", 0.99), "recover0.99"),
        (Target("speedup", 2.0, (("params", 5e6),)), "2x-params5e+06"),
        (Target("size", 0.0, (("sparsity", 0.5),)), "sparsity0.5"),
        (Target("size", 0.0, (("params", 9.0), ("flops", 8.0))), "params9-flops8"),
    ],
)
def test_the_name_of_a_target_tells_its_kind_value_and_limits(target: Target, name: str) -> None:
    assert target.name == name


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"speedup": (4, 1.5, 3)}, ["1.5x", "3x", "4x"]),
        ({"latency_ms": (5, 9, 7)}, ["9ms", "7ms", "5ms"]),
        ({"recover": (0.9, 0.99)}, ["recover0.99", "recover0.9"]),
        ({"sparsity": (0.75, 0.5)}, ["sparsity0.5", "sparsity0.75"]),
        ({"params": (10, 20)}, ["params20", "params10"]),
        ({"flops": (10, 20)}, ["flops20", "flops10"]),
        ({"bytes": (10, 20)}, ["bytes20", "bytes10"]),
    ],
)
def test_the_slowest_or_largest_member_of_a_kind_comes_first(
    values: dict[str, Any], names: list[str]
) -> None:
    assert names_of(**values) == names
    (kind, given), *_ = values.items()
    assert names_of(**{kind: tuple(reversed(given))}) == names


def test_kinds_come_in_a_fixed_order_whatever_the_order_of_the_options() -> None:
    expected = ["2x", "4x", "9ms", "5ms", "recover0.99"]
    assert names_of(speedup=(4, 2), latency_ms=(5, 9), recover=(0.99,)) == expected
    assert names_of(recover=(0.99,), latency_ms=(9, 5), speedup=(2, 4)) == expected


def test_equal_targets_are_made_once() -> None:
    assert names_of(speedup=(2, 2.0, 4, 2)) == ["2x", "4x"]


def test_a_single_limit_applies_to_every_speed() -> None:
    assert names_of(speedup=(2, 3), params=(9,), sparsity=(0.5,)) == [
        "2x-params9-sparsity0.5",
        "3x-params9-sparsity0.5",
    ]


def test_single_limits_without_a_speed_are_one_target() -> None:
    assert names_of(params=(9,), flops=(8,)) == ["params9-flops8"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "there is no target; give --speedup, --latency-ms, --recover or a limit of size"),
        ({"speedup": (2,), "params": (1, 2)}, "several values of params beside other targets"),
        ({"flops": (5,), "params": (1, 2)}, "several values of params beside other targets"),
        ({"speedup": (1.2345678, 1.2345679)}, "both are named 1.23457x; leave one out"),
    ],
)
def test_missing_and_conflicting_targets_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        names_of(**values)
    assert message in str(caught.value)


def test_targets_are_made_from_plain_values() -> None:
    assert make_targets({"speedup": (2.0,), "latency": ()}, {"params": (), "bytes": (7.0,)}) == [
        Target("speedup", 2.0, (("bytes", 7.0),))
    ]

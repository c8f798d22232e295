"""Invalid arguments raise a one-line error with the value and the rule; all valid forms are accepted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from obs_problems import random_problem
from obs_structured import prune

PROBLEM = random_problem(0, rows=4, groups=6)
NAN, INF = float("nan"), float("inf")


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[1] = value
    return tensor


W, H = PROBLEM.weight, PROBLEM.hessian

INVALID = {
    "nan weight": (
        {"weight": with_value(W, NAN)},
        "weight is nan or inf in 1 of 24 values; all must be finite",
    ),
    "inf weight": (
        {"weight": with_value(W, -INF)},
        "weight is nan or inf in 1 of 24 values; all must be finite",
    ),
    "nan hessian": (
        {"hessian": with_value(H, NAN)},
        "hessian is nan or inf in 1 of 36 values; all must be finite",
    ),
    "inf mean": ({"mean": with_value(H[0], INF)}, "mean is nan or inf in 1 of 6 values"),
    "nan metric": ({"metric": with_value(torch.eye(4), NAN)}, "metric is nan or inf in 1 of 16 values"),
    "1-d weight": ({"weight": W[0]}, r"weight has shape \(6,\), but must have 2 dimensions"),
    "empty weight": ({"weight": W[:0]}, "no dimension may be 0"),
    "integer weight": ({"weight": W.long()}, "weight must be a real floating-point tensor, not torch.int64"),
    "list": ({"weight": [[1.0]]}, "weight must be a real floating-point tensor, not list"),
    "hessian shape": ({"hessian": H[:5, :5]}, r"hessian has shape \(5, 5\), but must have \(6, 6\)"),
    "mean shape": ({"mean": H}, r"mean has shape \(6, 6\), but must have \(6,\)"),
    "metric shape": (
        {"metric": torch.eye(3)},
        r"metric has shape \(3, 3\), but must have \(4, 4\) or \(4,\)",
    ),
    "metric list": ({"metric": [1.0] * 4}, "metric must be a real floating-point tensor, not list"),
    "integer metric": ({"metric": torch.ones(4).long()}, "metric must be a real floating-point tensor"),
    "meta device": ({"weight": W.to("meta")}, "weight is on the meta device"),
    "metric rank": ({"metric": torch.ones(1, 4, 4)}, "metric has shape"),
    "asymmetric hessian": (
        {"hessian": with_value(H, 99.0)},
        r"hessian is not symmetric: \|M - M.T\| reaches",
    ),
    "indefinite hessian": ({"hessian": -H}, "hessian is not positive semidefinite"),
    "asymmetric metric": ({"metric": with_value(torch.eye(4), 1.0)}, "metric is not symmetric"),
    "indefinite metric": ({"metric": -torch.eye(4)}, "metric is not positive semidefinite"),
    "negative metric": ({"metric": with_value(torch.ones(4), -1.0)}, "metric is not positive semidefinite"),
    "zero metric": (
        {"metric": torch.zeros(4)},
        "metric is all zero; at least one of its 4 values must be nonzero",
    ),
    "zero weight": ({"weight": torch.zeros(4, 6)}, "weight is all zero"),
    "zero hessian": ({"hessian": torch.zeros(6, 6)}, "hessian is all zero"),
    "zero output": (
        {"weight": torch.eye(6)[:1], "hessian": torch.eye(6).index_fill(0, torch.tensor(0), 0)},
        r"the energy tr\(W H W.T\) of weight @ inputs is 0, but must be finite",
    ),
    "group size": ({"group_size": 4}, "group_size is 4, but must be a positive divisor of the 6 columns"),
    "zero group size": ({"group_size": 0}, "group_size is 0"),
    "fractional group size": ({"group_size": 2.0}, "group_size is 2.0"),
    "huge weight": (
        {"weight": 1e300 * W},
        r"value of weight is .*e\+300, but must be between 1e-290 and 1e\+290; multiply weight by",
    ),
    "tiny weight": ({"weight": 1e-300 * W}, "largest absolute value of weight is"),
    "huge hessian": ({"hessian": 1e300 * H}, "largest absolute value of hessian is"),
    "tiny hessian": ({"hessian": 1e-310 * H}, "largest absolute value of hessian is"),
    "huge metric": (
        {"metric": 1e308 * torch.eye(4, dtype=torch.float64)},
        "largest absolute value of metric is",
    ),
    "huge weight and mean": (
        {"weight": 1e200 * W, "hessian": 1e280 * H, "mean": 1e140 * PROBLEM.inputs.mean(0)},
        "weight @ mean overflows",
    ),
    "huge values off the diagonal": (
        {"hessian": 1e280 * (1 - torch.eye(6, dtype=torch.float64)) + 1e-20 * torch.eye(6)},
        "hessian is not positive semidefinite",
    ),
    "huge damping": (
        {"damping": 1e300},
        r"damping is 1e\+300, but must be between 0 and 1e\+06; it is relative to the mean diagonal",
    ),
    "largest float as damping": ({"damping": 1.7e308}, r"damping is 1.7e\+308"),
    "damping just too large": ({"damping": 1.1e6, "update": False}, "damping is 1100000.0"),
    "huge integer as damping": ({"damping": 10**400}, "damping is an integer of 1329 bits, but must be"),
    "damping as text": ({"damping": "0.1"}, "damping is '0.1', but must be between 0 and"),
    "count as text": ({"count": "many"}, "count is 'many', but must be at least 1"),
    "nan count": ({"count": NAN}, "count is nan, but must be at least 1"),
    "huge mean": (
        {"mean": torch.full((6,), 1e200, dtype=torch.float64)},
        r"hessian - 2 mean mean.T overflows: the largest absolute value of mean is 1e\+200",
    ),
    "negative damping": ({"damping": -0.1}, "damping is -0.1, but must be"),
    "nan damping": ({"damping": NAN}, "damping is nan"),
    "zero count": ({"count": 0}, "count is 0, but must be at least 1"),
    "method": ({"method": "OBS"}, "method is 'OBS', but must be one of 'obs', 'scores-once'"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_arguments_are_refused_with_the_reason(case: str) -> None:
    changes, message = INVALID[case]
    with pytest.raises(ValueError, match=message) as caught:
        prune(**({"weight": W, "hessian": H} | changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("shape", "group_size"), [((8, 4, 3, 5), 15), ((8, 4, 7), 7)])
def test_the_error_for_a_convolution_says_how_to_prune_it(shape: tuple[int, ...], group_size: int) -> None:
    with pytest.raises(ValueError, match="must have 2 dimensions; for a convolution") as caught:
        prune(torch.ones(shape), H)
    message = str(caught.value)
    assert message.startswith(f"weight has shape {shape}")
    assert f"prune(weight.flatten(1), hessian_of_unfolded_inputs, group_size={group_size})" in message
    assert "kernel_h * kernel_w" in message
    assert "\n" not in message


def test_valid_arguments_are_accepted() -> None:
    trace = prune(W, H, mean=PROBLEM.inputs.mean(0), metric=torch.eye(4), group_size=2, damping=0.1, count=1)
    assert trace.groups == 3


@pytest.mark.parametrize("call", ["kept", "columns", "weight", "bias_shift"])
@pytest.mark.parametrize("k", [-1, 7])
def test_levels_out_of_range_are_refused(call: str, k: int) -> None:
    trace = prune(W, H)
    with pytest.raises(ValueError, match=f"cannot remove {k} groups; the number must be from 0 to 6"):
        getattr(trace, call)(k)


def test_arguments_are_not_modified() -> None:
    before = W.clone(), H.clone()
    mean = PROBLEM.inputs.mean(0)
    prune(W, H, mean=mean)
    assert torch.equal(W, before[0])
    assert torch.equal(H, before[1])


def test_repr_summarises_the_trace() -> None:
    assert repr(prune(W, H, group_size=2)).startswith("Trace(4x6, 3 groups of 2, damping 0.01, error ")


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (torch.eye(3), r"metric has shape \(3, 3\), but must have \(4, 4\) or \(4,\)"),
        (torch.tensor(1.0), r"metric has shape \(\), but must have"),
        ([1.0] * 4, "metric must be a real floating-point tensor, not list"),
        (-torch.ones(4), "metric is not positive semidefinite"),
    ],
)
def test_errors_under_refuses_invalid_metrics(metric: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prune(W, H).errors_under(metric)


def transposed(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.T.contiguous().T


def strided(matrix: torch.Tensor) -> torch.Tensor:
    return torch.stack([matrix, matrix], dim=-1)[..., 0]


@pytest.mark.parametrize("layout", [transposed, strided])
def test_memory_layout_does_not_matter(layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    metric = W @ W.T
    expected = prune(W, H, metric=metric)
    trace = prune(layout(W), layout(H), metric=layout(metric))
    assert torch.equal(trace.order, expected.order)
    torch.testing.assert_close(trace.weight(2), expected.weight(2))
    torch.testing.assert_close(prune(W[:, :1], H[:1, :1]).errors, torch.tensor([0.0, 1.0]).double())


@pytest.mark.parametrize("scale", [2.0**511, 2.0**520, 2.0**-530, 2.0**900, 2.0**-900])
@pytest.mark.parametrize(
    "options",
    [{}, {"group_size": 2}, {"update": False}, {"mean": PROBLEM.inputs.mean(0)}, {"metric": W @ W.T}],
    ids=["plain", "groups", "no update", "mean", "metric"],
)
def test_weights_whose_squares_overflow_or_vanish_give_exact_results(
    scale: float, options: dict[str, Any]
) -> None:
    expected, trace = prune(W, H, **options), prune(scale * W, H, **options)
    assert torch.equal(trace.order, expected.order)
    assert torch.equal(trace.errors, expected.errors)
    assert torch.equal(trace.weight(2), scale * expected.weight(2))
    assert torch.equal(trace.bias_shift(2), scale * expected.bias_shift(2))


def test_the_largest_damping_is_accepted() -> None:
    assert prune(W, H, damping=1e6).errors.isfinite().all()


def test_absolute_errors_and_changes_that_overflow_are_refused() -> None:
    trace = prune(1e160 * W, H)
    with pytest.raises(ValueError, match="errors under this metric overflow; divide the metric"):
        trace.errors_under(torch.ones(4))
    assert trace.errors_under(torch.full((4,), 1e-100, dtype=torch.float64)).isfinite().all()
    with pytest.raises(ValueError, match="changes overflow float32; divide the gradients"):
        trace.first_order(PROBLEM.inputs, torch.ones(len(PROBLEM.inputs), 4))


@pytest.mark.parametrize(
    ("weight_scale", "hessian_scale"), [(1, 1e-40), (1, 1e40), (1e-100, 1), (1e100, 1e80)]
)
def test_scale_does_not_matter(weight_scale: float, hessian_scale: float) -> None:
    expected = prune(W, H, mean=PROBLEM.inputs.mean(0))
    mean = PROBLEM.inputs.mean(0) * hessian_scale**0.5
    trace = prune(weight_scale * W, hessian_scale * H, mean=mean)
    assert torch.equal(trace.order, expected.order)
    assert trace.damping == expected.damping
    torch.testing.assert_close(trace.errors, expected.errors)
    torch.testing.assert_close(trace.weight(3) / weight_scale, expected.weight(3))
    torch.testing.assert_close(
        trace.bias_shift(3) / weight_scale / hessian_scale**0.5, expected.bias_shift(3)
    )
    ratio = trace.errors_under(torch.ones(4)) / expected.errors_under(torch.ones(4))
    torch.testing.assert_close(ratio[1:] / weight_scale**2 / hessian_scale, torch.ones(6).double())


def test_default_device_does_not_matter() -> None:
    expected = prune(W, H, group_size=2)
    with torch.device("meta"):
        trace = prune(W, H, group_size=2)
    assert torch.equal(trace.errors, expected.errors)

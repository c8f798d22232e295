"""Moments gathered in batches equal the moments of all inputs at once."""

import pytest
import torch
import torch.multiprocessing
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_structured import Moments, prune
from obs_workers import reduce_on_worker


def direct(inputs: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hessian and the mean, computed input by input."""
    hessian, mean = torch.zeros(inputs.shape[1], inputs.shape[1], dtype=torch.float64), 0.0
    for x, w in zip(inputs.double(), weights.double(), strict=True):
        hessian += 2 * w * torch.outer(x, x) / weights.double().sum()
        mean += w * x / weights.double().sum()
    return hessian, mean


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    batches=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    d=st.integers(1, 6),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    weighted=st.booleans(),
)
def test_moments_in_batches_equal_moments_of_all_inputs(
    seed: int, batches: list[int], d: int, dtype: torch.dtype, weighted: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    batches = [*batches, 3]  # at least one batch that is not empty
    inputs = [torch.randn(n, 2, d, generator=generator, dtype=torch.float64).to(dtype) for n in batches]
    weights = [
        torch.rand(n, 2, generator=generator).mul(3).floor() if weighted else torch.ones(n, 2)
        for n in batches
    ]
    weights[-1][0, 0] = 2.5 if weighted else 1.0
    moments = Moments(d)
    for batch, weight in zip(inputs, weights, strict=True):
        moments.update(batch, weight if weighted else None)
    rows, flat = torch.cat(inputs).view(-1, d), torch.cat(weights).view(-1)
    hessian, mean = direct(rows, flat)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert moments.count == int((flat > 0).sum())
    assert moments.hessian.dtype == moments.mean.dtype == torch.float64
    torch.testing.assert_close(moments.hessian, hessian, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(moments.mean, mean, rtol=tolerance, atol=tolerance)
    assert torch.equal(moments.hessian, moments.hessian.T)


def test_weights_change_the_moments() -> None:
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    plain, weighted = Moments(4), Moments(4)
    plain.update(inputs)
    weighted.update(inputs, torch.linspace(0.1, 2, 20))
    assert (plain.hessian - weighted.hessian).abs().max() > 1e-3


def test_batches_are_not_modified() -> None:
    inputs = torch.randn(20, 4, dtype=torch.float64)
    before = inputs.clone()
    Moments(4).update(inputs, torch.linspace(0, 2, 20))
    assert torch.equal(inputs, before)


def test_inputs_of_weight_zero_are_ignored() -> None:
    inputs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 5)
    mask[:, 3:] = 0
    expected, moments = Moments(4), Moments(4)
    expected.update(inputs[:, :3])
    inputs[:, 3:] = float("nan")
    moments.update(inputs, mask)
    torch.testing.assert_close(moments.hessian, expected.hessian)
    assert moments.count == expected.count == 9


def test_many_inputs_lose_no_precision() -> None:
    # 40,000 float32 inputs with a large mean: sums in float32 alone would have an error of about 1e-3.
    inputs = 100 + torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0))
    moments = Moments(3)
    moments.update(inputs)
    exact = inputs.double()
    torch.testing.assert_close(moments.hessian, 2 * exact.T @ exact / len(exact), rtol=1e-6, atol=0)
    torch.testing.assert_close(moments.mean, exact.mean(0), rtol=1e-7, atol=0)


def test_a_large_mean_does_not_hide_the_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = 1e-3 * torch.randn(3000, 8, generator=generator) + 1000 * torch.rand(8, generator=generator)
    inputs[:, 3] = 100.1  # a constant that binary floats cannot hold exactly
    moments = Moments(8)
    for batch in inputs.split(700):
        moments.update(batch)
    centred = moments.hessian - 2 * torch.outer(moments.mean, moments.mean)
    exact = inputs.double() - inputs.double().mean(0)
    expected = 2 * exact.T @ exact / len(exact)
    torch.testing.assert_close(centred, expected, rtol=1e-3, atol=1e-3 * float(expected.max()))
    trace = prune(torch.ones(2, 8), moments.hessian, mean=moments.mean)  # not refused as indefinite
    assert trace.order[0] == 3


def test_autocast_does_not_lower_the_precision() -> None:
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    expected, moments = Moments(8), Moments(8)
    expected.update(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        moments.update(inputs)
    assert torch.equal(moments.hessian, expected.hessian)


def test_moments_created_in_inference_mode_can_be_updated_outside() -> None:
    with torch.inference_mode():
        moments = Moments(2)
        moments.update(torch.eye(2))
    moments.update(torch.eye(2))
    assert moments.count == 4


def test_matmul_precision_set_for_single_backends_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError("PyTorch is checking the matmul precision without a specific backend name")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", fail)
    moments = Moments(2)
    moments.update(torch.eye(2))
    assert moments.count == 2


def test_reduced_matmul_precision_does_not_affect_the_moments() -> None:
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    expected, moments = Moments(8), Moments(8)
    expected.update(inputs.double())
    torch.set_float32_matmul_precision("medium")
    try:
        moments.update(inputs)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(moments.hessian, expected.hessian, rtol=1e-12, atol=1e-12)


def test_merged_moments_equal_moments_of_all_inputs() -> None:
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, first, second = Moments(4), Moments(4), Moments(4)
    weights = torch.linspace(0.5, 3, 30)
    whole.update(inputs, weights)
    first.update(inputs[:7], weights[:7])
    second.update(inputs[7:], weights[7:])
    first.merge(second)
    torch.testing.assert_close(first.hessian, whole.hessian)
    torch.testing.assert_close(first.mean, whole.mean)
    assert first.count == whole.count == 30
    with pytest.raises(ValueError, match="cannot merge moments of 3 features into moments of 4"):
        first.merge(Moments(3))


def test_all_reduce_over_two_workers_equals_one_worker(tmp_path: object) -> None:
    inputs = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = Moments(5)
    whole.update(inputs, torch.linspace(0.5, 3, 30))
    torch.multiprocessing.spawn(reduce_on_worker, (str(tmp_path), inputs), nprocs=2)
    for rank in range(2):
        reduced = torch.load(f"{tmp_path}/{rank}.pt", weights_only=True)
        torch.testing.assert_close(reduced["hessian"], whole.hessian)
        torch.testing.assert_close(reduced["mean"], whole.mean)
        assert reduced["count"] == 30


@pytest.mark.parametrize("width", [1, 191, 192, 193, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strips_of_any_width_make_up_the_whole_product(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    inputs = torch.randn(70, width, generator=generator, dtype=dtype) + 3
    weights = torch.rand(70, generator=generator, dtype=torch.float64)
    moments = Moments(width)
    moments.update(inputs[:40], weights[:40])
    moments.update(inputs[40:], weights[40:])
    exact = inputs.double()
    expected = 2 * (weights * exact.mT) @ exact / weights.sum()
    torch.testing.assert_close(
        moments.hessian, expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0
    )
    assert torch.equal(moments.hessian, moments.hessian.mT)


def test_all_reduce_without_workers_changes_nothing() -> None:
    moments = Moments(2)
    moments.update(torch.eye(2))
    moments.all_reduce()
    assert moments.count == 2


@pytest.mark.parametrize(
    ("inputs", "weights", "message"),
    [
        (
            torch.ones(3, 5),
            None,
            r"must be a floating-point tensor of shape \(..., 4\), not torch.float32 of shape \(3, 5\)",
        ),
        (torch.ones(3, 4).long(), None, "torch.int64"),
        (torch.ones(3, 4), torch.ones(4), r"weights have shape \(4,\), but must have \(3,\)"),
        (torch.ones(3, 4), -torch.ones(3), "weights contain -1, but must be finite and not negative"),
        (torch.ones(3, 4), torch.full((3,), float("nan")), "weights contain nan"),
        (
            torch.eye(4)[:3],
            torch.full((3,), 1e80, dtype=torch.float64),
            "squares of the inputs add up to more than a float32 can hold",
        ),
        ([[1.0] * 4], None, r"inputs must be a floating-point tensor of shape \(..., 4\), not list"),
        (
            torch.full((3, 4), float("inf")),
            None,
            "inputs are nan or inf in 12 of 12 values; all must be finite",
        ),
        (
            1e30 * torch.eye(4)[:3],
            None,
            r"float32 can hold \(about 1e38\) in 3 of 4 features; the largest absolute input is 1e\+30;",
        ),
    ],
)
def test_invalid_batches_are_refused_and_change_nothing(
    inputs: torch.Tensor, weights: torch.Tensor | None, message: str
) -> None:
    moments = Moments(4)
    moments.update(torch.eye(4))
    with pytest.raises(ValueError, match=message):
        moments.update(inputs, weights)
    assert moments.count == 4
    assert torch.equal(moments.hessian, 0.5 * torch.eye(4, dtype=torch.float64))


OVERFLOW = r"squares of the inputs add up to more than a float64 can hold \(about 1e308\) in 4 of 4 features"


@pytest.mark.parametrize(
    ("value", "weight", "message"),
    [
        (1e200, 1.0, OVERFLOW),
        (6e153, 1.0, OVERFLOW),  # the sum of the squares is finite, but not twice the sum
        (1e100, 1e110, OVERFLOW),
        (1e-3, 1e308, "weights add up to more than a float64 can hold"),
    ],
)
def test_equal_inputs_whose_sums_overflow_are_refused(value: float, weight: float, message: str) -> None:
    moments = Moments(4)
    moments.update(torch.eye(4))
    inputs = torch.full((3, 4), value, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        moments.update(inputs, torch.full((3,), weight, dtype=torch.float64))
    assert moments.count == 4
    assert torch.equal(moments.hessian, 0.5 * torch.eye(4, dtype=torch.float64))


def test_sums_that_overflow_after_several_batches_are_refused() -> None:
    batch = torch.full((1, 4), 8e153, dtype=torch.float64)
    moments, other = Moments(4), Moments(4)
    moments.update(batch)
    other.update(batch)
    before = moments.hessian
    assert before.isfinite().all()
    with pytest.raises(ValueError, match=OVERFLOW):
        moments.update(batch)
    with pytest.raises(ValueError, match=OVERFLOW):
        moments.merge(other)
    assert moments.count == 1
    assert torch.equal(moments.hessian, before)


def test_sums_that_overflow_over_the_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(2))  # two equal workers
    moments = Moments(4)
    moments.update(torch.full((1, 4), 8e153, dtype=torch.float64))
    with pytest.raises(ValueError, match=OVERFLOW):
        moments.all_reduce()


def test_moments_without_inputs_have_no_hessian() -> None:
    with pytest.raises(ValueError, match="no inputs have been added yet"):
        Moments(4).hessian  # noqa: B018
    for size in (0, -3, 2.0, "4", True, None):
        with pytest.raises(ValueError, match=f"in_features is {size!r}, but must be a positive integer"):
            Moments(size)  # type: ignore[arg-type]
    assert repr(Moments(4)) == "Moments(in_features=4, count=0)"

"""Narrower values: errors agree with an attention that is recomputed, and no simpler basis is better."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_attention import Attention, Case, attention_case, cases, random_metric
from obs_structured import Moments, WidthTrace, narrow_heads, prune


def moments_of(case: Case) -> Moments:
    inputs = case.attention.inputs(case.tokens)
    moments = Moments(inputs.shape[-1])
    moments.update(inputs, case.weights)
    return moments


def trace_of(
    case: Case, centred: bool = True, metric: torch.Tensor | None = None, damping: float = 0.01
) -> WidthTrace:
    moments = moments_of(case)
    size = moments.in_features // case.attention.heads
    mean = moments.mean if centred else None
    return narrow_heads(
        case.attention.output, moments.hessian, size, mean=mean, metric=metric, damping=damping
    )


def narrowed(attention: Attention, trace: WidthTrace, removed: int, width: int) -> Attention:
    """Return the attention with narrower values; queries and keys keep their size, so that it can be run."""
    kept = trace.kept(removed, width)
    rows = (kept[:, None] * trace.head_size + torch.arange(trace.head_size)).flatten()
    return attention.with_heads(
        len(kept),
        value=trace.project(attention.value, removed, width),
        value_bias=trace.project(attention.value_bias, removed, width),
        output=trace.weight(removed, width),
        output_bias=attention.output_bias + trace.bias_shift(removed, width),
        **{name: getattr(attention, name)[rows] for name in ("query", "key", "query_bias", "key_bias")},
    )


def direct_error(case: Case, small: Attention, metric: torch.Tensor) -> float:
    """Return the weighted mean of (y' − y)ᵀ M (y' − y) over the tokens, from both attentions' outputs."""
    change = (small(case.tokens) - case.attention(case.tokens)).flatten(0, 1)
    weights = case.weights.flatten()
    return float(weights @ ((change @ metric) * change).sum(1) / weights.sum())


@settings(max_examples=30)
@given(cases(), st.booleans(), st.integers(0, 99))
def test_errors_equal_those_of_the_recomputed_attention(case: Case, centred: bool, seed: int) -> None:
    """For all heads and for fewer, at every width, under a metric that is not the one of the selection."""
    rows = len(case.attention.output)
    metric, other = random_metric(rows, seed), random_metric(rows, seed + 1)
    trace = trace_of(case, centred, metric)
    total = float(trace.errors_under(other, trace.head_size)[-1])
    for width in range(1, trace.head_size + 1):
        errors = trace.errors_under(other, width)
        for removed in range(trace.heads):
            small = narrowed(case.attention, trace, removed, width)
            expected = direct_error(case, small, other)
            assert float(errors[removed]) == pytest.approx(expected, rel=1e-6, abs=1e-9 * total)


@settings(max_examples=30)
@given(cases(), st.booleans())
def test_full_width_reproduces_the_dense_attention(case: Case, centred: bool) -> None:
    trace = trace_of(case, centred)
    small = narrowed(case.attention, trace, 0, trace.head_size)
    torch.testing.assert_close(small(case.tokens), case.attention(case.tokens), rtol=1e-10, atol=1e-10)


def test_control_a_narrower_attention_is_not_the_dense_one() -> None:
    case = attention_case(0)
    small = narrowed(case.attention, trace_of(case), 0, 5)
    assert (small(case.tokens) - case.attention(case.tokens)).abs().max() > 1e-6


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("with_metric", [False, True])
def test_at_full_width_the_heads_and_errors_are_those_of_prune(seed: int, with_metric: bool) -> None:
    case = attention_case(seed, heads=6, weighted=True)
    moments, metric = moments_of(case), random_metric(20, seed) if with_metric else None
    output, ones = case.attention.output, torch.ones(20)
    expected = prune(output, moments.hessian, 6, mean=moments.mean, metric=metric, damping=0.02)
    trace = trace_of(case, metric=metric, damping=0.02)
    for removed in range(7):
        assert torch.equal(trace.kept(removed, 6), expected.kept(removed))
        assert torch.equal(trace.order(4)[removed:].sort().values, trace.kept(removed, 4))
        torch.testing.assert_close(trace.bias_shift(removed, 6), expected.bias_shift(removed))
    assert torch.equal(trace.order(6), expected.order)
    torch.testing.assert_close(trace.errors(6), expected.errors, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(
        trace.errors_under(ones, 6)[1:], expected.errors_under(ones)[1:], rtol=1e-8, atol=1e-12
    )


def test_bases_are_orthonormal_and_nested() -> None:
    trace = trace_of(attention_case(0))
    for width in range(1, 7):
        basis = trace.basis(width)
        assert basis.shape == (4, 6, width)
        torch.testing.assert_close(basis.mT @ basis, torch.eye(width).double().expand(4, -1, -1))
        assert torch.equal(basis, trace.basis(6)[:, :, :width])


def test_wider_heads_and_more_heads_have_smaller_errors() -> None:
    trace = trace_of(attention_case(1))
    errors = torch.stack([trace.errors(width) for width in range(1, 7)])  # (widths, heads + 1)
    assert (errors.diff(dim=0) <= 1e-9).all()
    assert (errors.diff(dim=1) >= -1e-9).all()


@pytest.mark.parametrize("seed", range(5))
def test_simpler_bases_are_worse(seed: int) -> None:
    """Controls: the first columns of each head, and the principal components of its values."""
    case = attention_case(seed, heads=4, size=8, hidden=32)
    moments = moments_of(case)
    C = moments.hessian / 2 - torch.outer(moments.mean, moments.mean)
    output = case.attention.output
    blocks = torch.stack([C[h : h + 8, h : h + 8] for h in range(0, 32, 8)])
    components = torch.linalg.eigh(blocks).eigenvectors.flip(-1)  # (H, d, d)
    trace = trace_of(case, damping=1e-6)

    def error(bases: torch.Tensor) -> float:
        B = torch.block_diag(*bases)
        fitted = output @ C @ B @ torch.linalg.inv(B.T @ C @ B)
        change = fitted @ B.T - output
        return float((change @ C * change).sum())

    for width in (2, 4, 6):
        ours = float(trace.errors_under(torch.ones(32), width)[0])
        assert ours == pytest.approx(error(trace.basis(width)), rel=1e-3)
        truncated = torch.eye(8).double()[:, :width].expand(4, -1, -1)
        assert ours < 0.7 * error(truncated)
        assert ours < 0.9 * error(components[:, :, :width])


@given(st.integers(0, 99))
@settings(max_examples=20)
def test_the_basis_of_a_single_head_is_optimal(seed: int) -> None:
    """The error equals the sum of the squared singular values that are left out (Eckart and Young)."""
    case = attention_case(seed, heads=1, size=6, hidden=12)
    moments, metric = moments_of(case), random_metric(12, seed)
    C = moments.hessian / 2 - torch.outer(moments.mean, moments.mean)
    eigenvalues, vectors = torch.linalg.eigh(C)
    values = torch.linalg.svdvals(
        torch.linalg.cholesky(metric).T @ case.attention.output @ vectors * eigenvalues.clamp(min=0).sqrt()
    )
    trace = trace_of(case, metric=metric, damping=0.0)
    for width in range(1, 7):
        optimum = float(values[width:].square().sum())
        error = float(trace.errors_under(metric, width)[0])
        assert error == pytest.approx(optimum, rel=1e-6, abs=1e-10 * float(values.square().sum()))


@pytest.mark.parametrize("damping", [0.0, 0.01])
def test_dead_and_duplicate_heads_are_handled(damping: float) -> None:
    case = attention_case(3, heads=4, size=6)
    inputs = case.attention.inputs(case.tokens).flatten(0, 1)
    inputs[:, :6] = 1.5  # constant
    inputs[:, 12:18] = inputs[:, 6:12]
    mean, hessian = inputs.mean(0), 2 * inputs.T @ inputs / len(inputs)
    trace = narrow_heads(case.attention.output, hessian, 6, mean=mean, damping=damping)
    change = inputs @ case.attention.output.T
    for width in (1, 3, 6):
        for removed in range(5):
            small = trace.project(inputs.T, removed, width)  # any rows can be projected, also the inputs
            made = trace.weight(removed, width) @ small + trace.bias_shift(removed, width)[:, None]
            error = (made.T - change).square().sum() / change.square().sum()
            assert float(trace.errors(width)[removed]) == pytest.approx(float(error), rel=1e-5, abs=1e-9)
    assert 0 not in trace.kept(1, 3)


@pytest.mark.parametrize("scale", [2.0**-500, 2.0**500])
def test_scale_does_not_matter(scale: float) -> None:
    case = attention_case(4)
    moments = moments_of(case)
    expected = trace_of(case)
    trace = narrow_heads(scale * case.attention.output, moments.hessian, 6, mean=moments.mean, damping=0.01)
    assert torch.equal(trace.errors(3), expected.errors(3))
    assert torch.equal(trace.weight(1, 3), scale * expected.weight(1, 3))
    assert torch.equal(trace.bias_shift(1, 3), scale * expected.bias_shift(1, 3))


def test_results_have_the_dtypes_of_their_inputs() -> None:
    case = attention_case(5)
    moments = moments_of(case)
    trace = narrow_heads(case.attention.output.float(), moments.hessian, 6)
    assert trace.weight(1, 3).dtype == trace.bias_shift(1, 3).dtype == torch.float32
    assert trace.weight(1, 3).shape == (20, 9)
    assert trace.project(case.attention.value.bfloat16(), 1, 3).dtype == torch.bfloat16
    assert trace.project(case.attention.value, 1, 3).shape == (9, 20)
    assert not trace.bias_shift(1, 3).any()
    assert repr(trace) == "WidthTrace(20x24, 4 heads of 6)"


@pytest.mark.parametrize("metric", [None, torch.linspace(0.5, 2, 20), random_metric(20, 1)])
def test_a_loaded_trace_equals_the_saved_one(tmp_path: Path, metric: torch.Tensor | None) -> None:
    trace = trace_of(attention_case(6), centred=metric is None, metric=metric)
    trace.save(tmp_path / "heads")
    loaded = WidthTrace.load(tmp_path / "heads")
    for width in (1, 4, 6):
        assert torch.equal(loaded.errors(width), trace.errors(width))
        assert torch.equal(loaded.weight(2, width), trace.weight(2, width))
        assert torch.equal(loaded.bias_shift(2, width), trace.bias_shift(2, width))
        assert torch.equal(loaded.basis(width), trace.basis(width))
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_size": 5}, "head_size is 5, but must be a positive divisor of the 24 columns"),
        ({"head_size": 0}, "head_size is 0"),
        ({"head_size": "6"}, "head_size is '6'"),
        ({"hessian": torch.eye(23)}, r"hessian has shape \(23, 23\), but must have \(24, 24\)"),
        ({"output": torch.zeros(20, 24)}, "weight is all zero"),
        ({"output": torch.ones(20)}, "weight has shape"),
        ({"mean": torch.full((24,), 1e200, dtype=torch.float64)}, "hessian - 2 mean mean.T overflows"),
        ({"damping": -1}, "damping is -1"),
        ({"metric": torch.eye(3)}, r"metric has shape \(3, 3\)"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    case = attention_case(7)
    given_arguments = {"output": case.attention.output, "hessian": moments_of(case).hessian, "head_size": 6}
    with pytest.raises(ValueError, match=message):
        narrow_heads(**{**given_arguments, **arguments})


@pytest.mark.parametrize("width", [0, 7, -1, 2.0, True])
def test_widths_out_of_range_are_refused(width: int) -> None:
    trace = trace_of(attention_case(8))
    with pytest.raises(ValueError, match="but must be an integer from 1 to 6"):
        trace.weight(0, width)
    with pytest.raises(ValueError, match="cannot remove 5 groups"):
        trace.weight(5, 3)
    with pytest.raises(ValueError, match=r"rows has shape \(23, 20\), but must have \(24, 20\)"):
        trace.project(torch.ones(23, 20), 0, 3)

"""Narrower queries and keys: errors agree with recomputed scores, and no simpler projection is better."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_attention import Attention, Case, attention_case, cases
from obs_structured import ScoreTrace, narrow_scores


def second_moments(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the second moments (H, d, d) of rows (batch, H, tokens, d) with weights (batch, tokens)."""
    return torch.einsum("bhtd,bhte,bt->hde", rows, rows, weights) / weights.sum()


def gradients_of(case: Case, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of a random projection of the outputs at queries and keys, (batch, H, tokens, d)."""
    attention, x = case.attention, case.tokens
    q, k = attention.queries(x).requires_grad_(), attention.keys(x).requires_grad_()
    outputs = attention.mixed(q, k, x) @ attention.output.T
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad((outputs * direction).sum(), (q, k))


def trace_of(case: Case, fisher: bool, damping: float = 1e-3) -> ScoreTrace:
    q, k = case.attention.queries(case.tokens), case.attention.keys(case.tokens)
    mean = torch.einsum("bhtd,bt->hd", k, case.weights) / case.weights.sum()
    arguments = {}
    if fisher:
        names = ("query_fisher", "key_fisher")
        arguments = {
            name: second_moments(rows, torch.ones_like(case.weights))
            for name, rows in zip(names, gradients_of(case), strict=True)
        }
    queries, keys = second_moments(q, case.weights), second_moments(k, case.weights)
    return narrow_scores(queries, keys, key_mean=mean, damping=damping, **arguments)


def narrowed(attention: Attention, trace: ScoreTrace, width: int) -> Attention:
    """Return the attention with narrower queries and keys, which divides scores by √width."""
    return attention.with_heads(
        attention.heads,
        query=trace.project_queries(attention.query, width),
        query_bias=trace.project_queries(attention.query_bias, width),
        key=trace.project_keys(attention.key, width),
        key_bias=trace.project_keys(attention.key_bias, width),
    )


def change_of(trace: ScoreTrace, width: int) -> torch.Tensor:
    """Return ΔB (H, d, d), from the projections of the identity."""
    heads, size = trace.heads, trace.head_size
    identity = torch.eye(size, dtype=torch.float64)
    rows = identity.repeat(heads, 1)
    P_q = trace.project_queries(rows, width, scaled=False).view(heads, width, size)
    P_k = trace.project_keys(rows, width).view(heads, width, size)
    return P_q.mT @ P_k - identity


@settings(max_examples=30)
@given(cases(), st.booleans())
def test_full_width_reproduces_the_dense_attention(case: Case, fisher: bool) -> None:
    trace = trace_of(case, fisher)
    small = narrowed(case.attention, trace, trace.head_size)
    torch.testing.assert_close(small(case.tokens), case.attention(case.tokens), rtol=1e-9, atol=1e-9)


def test_control_narrower_heads_and_a_missing_factor_change_the_outputs() -> None:
    case = attention_case(0)
    trace = trace_of(case, fisher=True)
    dense = case.attention(case.tokens)
    assert (narrowed(case.attention, trace, 5)(case.tokens) - dense).abs().max() > 1e-6
    size = trace.head_size
    for width in (3, 6):
        scaled = trace.project_queries(case.attention.query, width)
        plain = trace.project_queries(case.attention.query, width, scaled=False)
        torch.testing.assert_close(scaled, plain * (width / size) ** 0.5)


@settings(max_examples=30)
@given(cases())
def test_errors_equal_those_of_the_recomputed_scores(case: Case) -> None:
    """Without gradients: the mean square of the change, over all pairs of a query and a centred key."""
    trace = trace_of(case, fisher=False)
    q = case.attention.queries(case.tokens).transpose(0, 1).flatten(1, 2)  # (H, n, d)
    k = case.attention.keys(case.tokens).transpose(0, 1).flatten(1, 2)
    weights = case.weights.flatten() / case.weights.sum()
    k = k - torch.einsum("n,hnd->hd", weights, k)[:, None]
    total = trace.errors(1).sum()
    for width in range(1, trace.head_size + 1):
        changes = q @ change_of(trace, width) @ k.mT  # (H, n, n)
        expected = torch.einsum("hij,i,j->h", changes.square(), weights, weights)
        torch.testing.assert_close(trace.errors(width), expected, rtol=1e-6, atol=1e-9 * float(total) + 1e-12)


def test_errors_under_gradients_equal_the_recomputed_ones() -> None:
    case = attention_case(1)
    trace = trace_of(case, fisher=True)
    q = case.attention.queries(case.tokens).transpose(0, 1).flatten(1, 2)  # (H, n, d)
    a = gradients_of(case)[0].transpose(0, 1).flatten(1, 2)
    for width in (1, 3, 5):
        expected = (q @ change_of(trace, width) @ a.mT).square().mean((1, 2))
        torch.testing.assert_close(trace.errors(width), expected, rtol=1e-6, atol=1e-12)


@given(st.integers(0, 99), st.integers(1, 5))
@settings(max_examples=20)
def test_projections_are_optimal_for_independent_queries_and_keys(seed: int, width: int) -> None:
    """No rank does better than the singular values that are left out (Eckart and Young)."""
    case = attention_case(seed, heads=2, size=6)
    q, k = case.attention.queries(case.tokens), case.attention.keys(case.tokens)
    S_q, S_k = second_moments(q, case.weights), second_moments(k, case.weights)
    trace = narrow_scores(S_q, S_k, damping=0.0)
    left, right = torch.linalg.cholesky(S_q), torch.linalg.cholesky(S_k)
    values = torch.linalg.svdvals(left.mT @ right)  # (H, d)
    torch.testing.assert_close(
        trace.errors(width),
        values[:, width:].square().sum(1),
        rtol=1e-5,
        atol=1e-10 * float(values.max()) ** 2,
    )


@pytest.mark.parametrize("seed", range(5))
def test_simpler_projections_are_worse(seed: int) -> None:
    """Controls: the first rows of each head, and the principal components of its queries or of its keys."""
    case = attention_case(seed, heads=4, size=8, hidden=32)
    q, k = case.attention.queries(case.tokens), case.attention.keys(case.tokens)
    S_q, S_k = second_moments(q, case.weights), second_moments(k, case.weights)
    trace = narrow_scores(S_q, S_k, damping=1e-6)
    for width in (2, 4, 6):
        ours = float(trace.errors(width).sum())
        for simple in (
            torch.eye(8).double()[:, :width].expand(4, -1, -1),
            torch.linalg.eigh(S_q).eigenvectors.flip(-1)[:, :, :width],
            torch.linalg.eigh(S_k).eigenvectors.flip(-1)[:, :, :width],
        ):
            change = simple @ simple.mT - torch.eye(8)
            assert ours < 0.95 * float((S_q @ change @ S_k * change).sum())


@pytest.mark.parametrize("seed", range(4))
def test_gradients_lower_the_error_of_the_outputs(seed: int) -> None:
    """The narrower attention as it would be used, at half width; the control is plain truncation."""
    case = attention_case(seed, heads=4, size=8, hidden=32)
    dense = case.attention(case.tokens)
    small = narrowed(case.attention, trace_of(case, fisher=True), 4)
    rows = torch.arange(32).view(4, 8)[:, :4].flatten()
    names = ("query", "query_bias", "key", "key_bias")
    parts = {name: getattr(case.attention, name)[rows] for name in names}
    parts["query"], parts["query_bias"] = parts["query"] * 0.5**0.5, parts["query_bias"] * 0.5**0.5
    truncated = case.attention.with_heads(4, **parts)
    error = (small(case.tokens) - dense).square().sum()
    assert error < 0.7 * (truncated(case.tokens) - dense).square().sum()


def test_a_part_that_is_the_same_for_all_keys_costs_nothing() -> None:
    """Keys with a large common mean: the softmax does not see it, so it does not take up width."""
    case = attention_case(2, heads=2, size=6)
    shifted = case.attention.with_heads(2, key_bias=case.attention.key_bias + 50)
    far = Case(shifted, case.tokens, case.weights)
    torch.testing.assert_close(
        trace_of(far, fisher=False).errors(3), trace_of(case, fisher=False).errors(3), rtol=1e-5, atol=1e-9
    )


def test_kept_heads_can_be_chosen() -> None:
    case = attention_case(3)
    trace = trace_of(case, fisher=False)
    every = trace.project_keys(case.attention.key, 3).view(4, 3, 20)
    some = trace.project_keys(case.attention.key, 3, torch.tensor([1, 3])).view(2, 3, 20)
    assert torch.equal(some, every[[1, 3]])
    assert repr(trace) == "ScoreTrace(4 heads of 6)"


def test_heads_without_queries_or_keys_have_no_error() -> None:
    moments = torch.eye(3).double().repeat(2, 1, 1)
    moments[0] = 0
    trace = narrow_scores(moments, moments)
    assert trace.errors(1)[0] == 0 < trace.errors(1)[1]
    assert torch.isfinite(trace.project_queries(torch.ones(6, 2), 2)).all()


def test_a_loaded_trace_equals_the_saved_one(tmp_path: Path) -> None:
    case = attention_case(4)
    trace = trace_of(case, fisher=True)
    trace.save(tmp_path / "scores")
    loaded = ScoreTrace.load(tmp_path / "scores")
    for width in (1, 6):
        assert torch.equal(loaded.errors(width), trace.errors(width))
        rows = case.attention.query
        assert torch.equal(loaded.project_queries(rows, width), trace.project_queries(rows, width))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": torch.ones(6)}, r"queries has shape \(6,\), but must have 3 dimensions"),
        ({"keys": torch.eye(3).repeat(3, 1, 1)}, r"keys has shape \(3, 3, 3\), but must have \(2, 3, 3\)"),
        ({"keys": -torch.eye(3).repeat(2, 1, 1)}, "keys is not positive semidefinite"),
        ({"queries": torch.ones(2, 3, 3).triu()}, "queries is not symmetric"),
        ({"key_mean": torch.ones(3)}, r"key_mean has shape \(3,\), but must have \(2, 3\)"),
        ({"key_mean": torch.full((2, 3), 9.0)}, "keys - key_mean key_mean.T is not positive semidefinite"),
        ({"query_fisher": torch.full((2, 3, 3), torch.nan)}, "query_fisher is nan or inf in 18 of 18"),
        ({"damping": -1.0}, r"damping is -1.0, but must be between 0 and 1e\+06"),
        ({"damping": "x"}, "damping is 'x'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    moments = torch.eye(3).repeat(2, 1, 1)
    with pytest.raises(ValueError, match=message):
        narrow_scores(**{"queries": moments, "keys": moments, **arguments})


@pytest.mark.parametrize("width", [0, 4, 1.0])
def test_widths_out_of_range_are_refused(width: int) -> None:
    moments = torch.eye(3).repeat(2, 1, 1)
    with pytest.raises(ValueError, match="but must be an integer from 1 to 3"):
        narrow_scores(moments, moments).errors(width)

"""First-order changes of a loss by narrower heads equal derivatives through the changed attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_attention import Case, attention_case, cases
from obs_structured import ScoreTrace, WidthTrace, narrow_heads, narrow_scores


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def values_trace(case: Case, centred: bool) -> WidthTrace:
    z = case.attention.inputs(case.tokens).flatten(0, 1)
    mean = z.mean(0) if centred else None
    size = z.shape[1] // case.attention.heads
    return narrow_heads(case.attention.output, 2 * z.T @ z / len(z), size, mean=mean, damping=0.01)


def scores_trace(case: Case) -> ScoreTrace:
    q, k = case.attention.queries(case.tokens), case.attention.keys(case.tokens)
    second = [torch.einsum("bhtd,bhte->hde", rows, rows) for rows in (q, k)]
    return narrow_scores(*second, damping=0.01)


@settings(max_examples=30, deadline=None)
@given(case=cases(), centred=st.booleans(), seed=st.integers(0, 2**31), data=st.data())
def test_values_equal_gradients_times_the_change_of_the_outputs(
    case: Case, centred: bool, seed: int, data: st.DataObject
) -> None:
    trace = values_trace(case, centred)
    width = data.draw(st.integers(1, trace.head_size))
    z = case.attention.inputs(case.tokens)  # (batch, tokens, H d)
    g = normal(seed, *z.shape[:-1], len(case.attention.output))
    found = trace.first_order(z, g, width)
    assert found.shape == (len(z), trace.heads + 1)
    for removed in range(trace.heads + 1):
        kept = trace.kept(removed, width)
        basis = trace.basis(width)[kept]  # (kept, d, r)
        by_head = z.unflatten(-1, (trace.heads, -1))[..., kept, :]  # (batch, tokens, kept, d)
        narrow = torch.einsum("btkd,kdr->btkr", by_head, basis).flatten(2)
        new = narrow @ trace.weight(removed, width).T + trace.bias_shift(removed, width)
        terms = g * (new - z @ case.attention.output.T)
        expected = terms.sum((1, 2))
        allowed = 1e-4 * float(g.abs().max() * z.abs().sum((1, 2)).max() * case.attention.output.abs().max())
        torch.testing.assert_close(found[:, removed].double(), expected, rtol=1e-3, atol=allowed)


def test_scores_equal_the_derivative_of_a_loss_along_the_change_of_the_scores() -> None:
    case = attention_case(3)
    attention, x = case.attention, case.tokens
    trace = scores_trace(case)
    k = attention.keys(x)
    direction = normal(7, *x.shape)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, given unscaled scores (batch, H, tokens, tokens)."""
        values = attention.split(x @ attention.value.T + attention.value_bias)
        mixed = (scores / trace.head_size**0.5).softmax(-1) @ values
        return (mixed.transpose(1, 2).flatten(2) @ attention.output.T * direction).sum((1, 2))

    q = attention.queries(x).requires_grad_()
    (at_queries,) = torch.autograd.grad(loss(q @ k.mT).sum(), q)
    q = q.detach()
    for width in (1, 3, trace.head_size):
        found = trace.first_order(q.transpose(1, 2), at_queries.transpose(1, 2), width)  # (batch, H)
        identity = torch.eye(trace.head_size, dtype=torch.float64).repeat(trace.heads, 1)
        P_q = trace.project_queries(identity, width, scaled=False).unflatten(0, (trace.heads, -1))
        P_k = trace.project_keys(identity, width).unflatten(0, (trace.heads, -1))
        changed = (q @ P_q.mT) @ (k @ P_k.mT).mT - q @ k.mT  # (batch, H, tokens, tokens)
        for head in range(trace.heads):
            only = torch.zeros(trace.heads, 1, 1, dtype=torch.float64)
            only[head] = 1
            share = torch.zeros((), dtype=torch.float64, requires_grad=True)
            moved = loss(q @ k.mT + share * only * changed)
            slopes = torch.stack([torch.autograd.grad(one, share, retain_graph=True)[0] for one in moved])
            torch.testing.assert_close(found[:, head].double(), slopes, rtol=1e-3, atol=1e-4)
    assert trace.first_order(q.transpose(1, 2), at_queries.transpose(1, 2), 1).abs().max() > 1e-2


def test_wrong_shapes_and_values_are_refused() -> None:
    case = attention_case(5)
    values, scores = values_trace(case, centred=True), scores_trace(case)
    z, g = torch.ones(3, 24), torch.ones(3, 20)
    q = torch.ones(3, 4, 6)
    for inputs, gradients, message in (
        (torch.ones(3, 23), g, "inputs"),
        (z, torch.ones(3, 21), "gradients"),
        (z, torch.ones(2, 20), "gradients"),
        (z * torch.nan, g, "inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            values.first_order(inputs, gradients, 3)
    for queries, gradients, message in (
        (torch.ones(3, 4, 5), q, "queries"),
        (q, torch.ones(2, 4, 6), "gradients"),
        (q, q * torch.inf, "gradients"),
    ):
        with pytest.raises(ValueError, match=message):
            scores.first_order(queries, gradients, 3)
    with pytest.raises(ValueError, match="the width is 7"):
        values.first_order(z, g, 7)
    with pytest.raises(ValueError, match="the width is 7"):
        scores.first_order(q, q, 7)

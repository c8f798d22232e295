"""First-order changes of a loss equal their definition at every level."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_problems import Problem, problems, random_problem, spread
from obs_structured import Trace, prune


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(
    problem: Problem, trace: Trace, inputs: torch.Tensor, gradients: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Σ_n g·ΔW_k (x − μ) and a bound on the sum of its absolute terms, both (..., groups + 1)."""
    mean = torch.zeros(inputs.shape[-1], dtype=torch.float64) if problem.mean is None else problem.mean
    changes, bounds = [], []
    for k in range(trace.groups + 1):
        lost = spread(trace.weight(k), trace.columns(k), problem.weight.shape[1]) - problem.weight
        terms = gradients * ((inputs - mean) @ lost.T)  # (..., n, r)
        changes.append(terms.sum((-2, -1)))
        bounds.append(gradients.abs().sum(-1).mul((inputs - mean).abs() @ lost.abs().sum(0)).sum(-1))
    return torch.stack(changes, dim=-1), torch.stack(bounds, dim=-1)


@settings(max_examples=50)
@given(
    problem=problems(),
    update=st.booleans(),
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1,), (5,), (3, 4), (2, 3, 2)]),
    damping=st.sampled_from([None, 0.01, 1e-4]),
)
def test_equals_gradients_times_the_change_of_the_outputs(
    problem: Problem, update: bool, seed: int, shape: tuple[int, ...], damping: float | None
) -> None:
    rows, columns = problem.weight.shape
    trace = prune(
        problem.weight,
        problem.hessian,
        problem.group_size,
        mean=problem.mean,
        update=update,
        damping=damping,
    )
    inputs, gradients = normal(seed, *shape, columns), normal(seed + 1, *shape, rows)
    found = trace.first_order(inputs, gradients)
    expected, bound = by_definition(problem, trace, inputs, gradients)
    assert found.shape == (*shape[:-1], trace.groups + 1)
    assert not found[..., 0].any()
    # Rounding errors of float32 are relative to the terms that cancel, not to their sum.
    allowed = 1e-4 * float(bound.max()) + 1e-12
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=allowed)


@pytest.mark.parametrize("centred", [False, True])
def test_equals_autograd_through_the_pruned_matrix(centred: bool) -> None:
    """Compare with the derivative of a loss along the step from the dense layer to each level."""
    problem = random_problem(3, 6, 5, 2, centred=centred)
    trace = prune(problem.weight, problem.hessian, 2, mean=problem.mean)
    inputs = problem.inputs[:7]

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        return outputs.tanh().square().sum()

    outputs = (inputs @ problem.weight.T).requires_grad_()
    (gradients,) = torch.autograd.grad(loss(outputs), outputs)
    found = trace.first_order(inputs, gradients)
    for k in range(trace.groups + 1):
        step = spread(trace.weight(k), trace.columns(k), 10) - problem.weight
        share = torch.zeros((), dtype=torch.float64, requires_grad=True)
        moved = inputs @ (problem.weight + share * step).T + share * trace.bias_shift(k)
        (slope,) = torch.autograd.grad(loss(moved), share)
        torch.testing.assert_close(found[k].double(), slope, rtol=1e-4, atol=1e-4)


def test_a_loaded_trace_gives_the_same_result(tmp_path: object) -> None:
    problem = random_problem(4, 6, 8, centred=True)
    trace = prune(problem.weight, problem.hessian, mean=problem.mean)
    trace.save(f"{tmp_path}/trace")
    inputs, gradients = normal(1, 3, 5, 8), normal(2, 3, 5, 6)
    torch.testing.assert_close(
        Trace.load(f"{tmp_path}/trace").first_order(inputs, gradients), trace.first_order(inputs, gradients)
    )


def test_inputs_with_zero_gradient_contribute_nothing() -> None:
    problem = random_problem(5, 6, 8, centred=True)
    trace = prune(problem.weight, problem.hessian, mean=problem.mean)
    inputs, gradients = normal(1, 5, 8), normal(2, 5, 6)
    gradients[3:] = 0
    torch.testing.assert_close(
        trace.first_order(inputs, gradients), trace.first_order(inputs[:3], gradients[:3])
    )
    assert (
        trace.first_order(inputs, gradients + 1).sub(trace.first_order(inputs, gradients)).abs().max() > 0.1
    )


@pytest.mark.parametrize(
    ("inputs", "gradients", "message"),
    [
        (torch.ones(3, 7), torch.ones(3, 6), "inputs"),
        (torch.ones(3, 8), torch.ones(3, 7), "gradients"),
        (torch.ones(3, 8), torch.ones(2, 6), "gradients"),
        (torch.full((3, 8), torch.nan), torch.ones(3, 6), "inputs"),
        (torch.ones(3, 8), torch.full((3, 6), torch.inf), "gradients"),
    ],
)
def test_wrong_shapes_and_values_are_refused(
    inputs: torch.Tensor, gradients: torch.Tensor, message: str
) -> None:
    problem = random_problem(6, 6, 8)
    with pytest.raises(ValueError, match=message):
        prune(problem.weight, problem.hessian).first_order(inputs, gradients)

"""Damping of the Hessian, and Hessians that are refused."""

import logging

import pytest
import torch
from obs_problems import optimal_weight, random_problem
from obs_structured import prune


def test_default_damping_depends_on_count() -> None:
    problem = random_problem(1)
    dampings = [prune(problem.weight, problem.hessian, count=count).damping for count in (None, 24, 23)]
    assert dampings == [0.01, 0.01, 0.1]


def test_damping_is_relative_to_the_centred_hessian() -> None:
    problem = random_problem(2, centred=True)
    trace = prune(problem.weight, problem.hessian, mean=problem.mean, damping=0.05)
    expected = optimal_weight(problem.weight, problem.damped_hessian(0.05), trace.columns(6))
    torch.testing.assert_close(trace.weight(6), expected)


def test_damping_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    problem = random_problem(3, groups=12, samples=4)  # rank 4: singular without damping
    with caplog.at_level(logging.WARNING, logger="obs_structured"):
        trace = prune(problem.weight, problem.hessian, damping=0.0)
    assert trace.damping > 0
    assert "damping raised to" in caplog.text
    assert trace.errors.isfinite().all()
    assert trace.weight(3).isfinite().all()


def test_no_warning_if_the_damping_suffices(caplog: pytest.LogCaptureFixture) -> None:
    problem = random_problem(3, groups=12, samples=4)
    assert prune(problem.weight, problem.hessian, damping=1e-4).damping == 1e-4
    regular = random_problem(3, groups=12, samples=400)
    assert prune(regular.weight, regular.hessian, damping=0.0).damping == 0.0
    assert not caplog.records


def hessian_with_smallest_eigenvalue(smallest: float) -> torch.Tensor:
    """Return a Hessian (40, 40) with eigenvalues from `smallest` to 1."""
    vectors, _ = torch.linalg.qr(
        torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    eigenvalues = torch.linspace(0.01, 1, 40, dtype=torch.float64)
    eigenvalues[0] = smallest
    return vectors @ eigenvalues.diag() @ vectors.T


@pytest.mark.parametrize("smallest", [-1e-2, -1.5e-6, -1.01e-6])
def test_an_indefinite_hessian_is_refused_even_with_large_damping(smallest: float) -> None:
    with pytest.raises(ValueError, match="hessian is not positive semidefinite: its smallest eigenvalue"):
        prune(torch.ones(3, 40), hessian_with_smallest_eigenvalue(smallest), damping=1.0)


@pytest.mark.parametrize("smallest", [-0.9e-6, 0.0])
def test_eigenvalues_negative_by_rounding_are_accepted(smallest: float) -> None:
    assert prune(torch.ones(3, 40), hessian_with_smallest_eigenvalue(smallest)).errors.isfinite().all()


def test_a_mean_too_large_for_the_hessian_is_refused() -> None:
    problem = random_problem(4)
    with pytest.raises(ValueError, match=r"hessian - 2 mean mean.T is not positive semidefinite"):
        prune(problem.weight, problem.hessian, mean=10 * problem.inputs.mean(0))

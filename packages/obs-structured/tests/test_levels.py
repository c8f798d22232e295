"""The weights and errors of every level equal their closed forms."""

import obs_structured._factor as factor
import obs_structured._solve as solve_module
import obs_structured._trace as trace_module
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_problems import Problem, optimal_weight, problems, random_problem, spread
from obs_structured import Trace, prune

METHODS = ["obs", "scores-once", "activation", "magnitude"]


def trace_of(problem: Problem, **options: object) -> Trace:
    return prune(problem.weight, problem.hessian, problem.group_size, mean=problem.mean, **options)


def assert_levels_are_optimal(problem: Problem, trace: Trace) -> None:
    damped = problem.damped_hessian(trace.damping)
    scale = problem.weight.abs().max()
    for k in range(trace.groups + 1):
        columns = trace.columns(k)
        assert columns.tolist() == sorted(set(range(len(damped))) - removed_columns(trace, k))
        expected = optimal_weight(problem.weight, damped, columns)
        torch.testing.assert_close(trace.weight(k), expected, rtol=1e-8, atol=1e-9 * float(scale))
        error = problem.error(spread(trace.weight(k), columns, len(damped)))
        torch.testing.assert_close(trace.errors[k], error, rtol=1e-8, atol=1e-11)


def removed_columns(trace: Trace, k: int) -> set[int]:
    g = trace.group_size
    return {group * g + offset for group in trace.order[:k].tolist() for offset in range(g)}


@settings(max_examples=120)
@given(problem=problems(), block=st.sampled_from([4, 192]))
def test_levels_are_optimal(problem: Problem, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factor, "BLOCK", block)
        patch.setattr(trace_module, "BLOCK", block)
        assert_levels_are_optimal(problem, trace_of(problem))


@pytest.mark.parametrize("flaw", ["none", "dead", "duplicate"])
@pytest.mark.parametrize("samples", [30, 800])
def test_levels_are_optimal_over_many_blocks(flaw: str, samples: int) -> None:
    assert_levels_are_optimal(
        *with_trace(random_problem(1, 12, 230, samples=samples, centred=True, flaw=flaw))
    )


def with_trace(problem: Problem) -> tuple[Problem, Trace]:
    return problem, trace_of(problem)


@settings(max_examples=40)
@given(problem=problems(flaw="none"), method=st.sampled_from(METHODS[1:]))
def test_levels_of_baselines_are_optimal_given_their_order(problem: Problem, method: str) -> None:
    assert_levels_are_optimal(problem, trace_of(problem, method=method))


@pytest.mark.parametrize("damping", [1e-13, 1e-12, 1e-6])
def test_errors_are_accurate_with_hardly_any_damping(damping: float) -> None:
    problem = random_problem(2, 8, 60, samples=20)  # a Hessian of rank 20
    trace = trace_of(problem, damping=damping)
    for k in range(trace.groups + 1):
        columns = trace.columns(k)
        best = optimal_weight(problem.weight, problem.damped_hessian(damping), columns)
        best_error = problem.error(spread(best, columns, 60))
        error = problem.error(spread(trace.weight(k), columns, 60))
        torch.testing.assert_close(error, best_error, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(trace.errors[k], best_error, rtol=1e-6, atol=1e-9)


def test_an_inaccurate_factor_is_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(2, 8, 60, samples=20)
    accurate = trace_of(problem, damping=1e-13).errors
    monkeypatch.setattr(solve_module, "_is_accurate", lambda *arguments: True)
    assert (trace_of(problem, damping=1e-13).errors - accurate).abs().max() > 1e-6


def test_levels_without_update_are_not_optimal() -> None:
    problem = random_problem(3, 8, 20)
    with pytest.raises(AssertionError):
        assert_levels_are_optimal(problem, trace_of(problem, update=False))


def test_damping_changes_the_weights() -> None:
    problem = random_problem(3, 8, 20)
    trace = trace_of(problem, damping=0.1)
    undamped = optimal_weight(problem.weight, problem.effective_hessian, trace.columns(10))
    assert (trace.weight(10) - undamped).abs().max() > 1e-4


@settings(max_examples=60)
@given(problem=problems(), method=st.sampled_from(METHODS))
def test_without_update_the_weights_do_not_change(problem: Problem, method: str) -> None:
    trace = trace_of(problem, method=method, update=False)
    for k in range(trace.groups + 1):
        columns = trace.columns(k)
        assert torch.equal(trace.weight(k), problem.weight[:, columns])
        error = problem.error(spread(trace.weight(k), columns, problem.weight.shape[1]))
        torch.testing.assert_close(trace.errors[k], error, rtol=1e-8, atol=1e-11)


@settings(max_examples=60)
@given(problem=problems(), update=st.booleans(), seed=st.integers(0, 2**31), diagonal=st.booleans())
def test_errors_under_a_metric_equal_their_definition(
    problem: Problem, update: bool, seed: int, diagonal: bool
) -> None:
    rows = len(problem.weight)
    root = torch.randn(rows, rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    metric = (root.T @ root).diagonal().diag() if diagonal else root.T @ root
    trace = trace_of(problem, update=update)
    absolute = trace.errors_under(metric.diagonal() if diagonal else metric)
    assert absolute.shape == (trace.groups + 1,)
    half = problem.effective_hessian / 2
    power = torch.trace(metric @ problem.weight @ problem.hessian @ problem.weight.T)
    for k in range(trace.groups + 1):
        lost = spread(trace.weight(k), trace.columns(k), problem.weight.shape[1]) - problem.weight
        expected = torch.trace(metric @ lost @ half @ lost.T)
        torch.testing.assert_close(absolute[k], expected, rtol=1e-8, atol=1e-11 * float(power))


@settings(max_examples=60)
@given(problem=problems(centred=True), update=st.booleans())
def test_bias_shift_preserves_the_mean_output(problem: Problem, update: bool) -> None:
    trace = trace_of(problem, update=update)
    expected = problem.weight @ problem.mean
    for k in range(trace.groups + 1):
        output = trace.weight(k) @ problem.mean[trace.columns(k)] + trace.bias_shift(k)
        torch.testing.assert_close(output, expected, rtol=1e-8, atol=1e-9)


def test_without_a_mean_the_bias_shift_is_zero_and_the_mean_output_changes() -> None:
    problem = random_problem(4, 8, 12)
    trace = trace_of(problem)
    assert not trace.bias_shift(6).any()
    moved = trace.weight(6) @ problem.inputs.mean(0)[trace.columns(6)] - problem.weight @ problem.inputs.mean(
        0
    )
    assert moved.abs().max() > 1e-3


@settings(max_examples=30)
@given(problem=problems(centred=True, samples=80))
def test_centring_never_increases_the_error_for_the_same_columns(problem: Problem) -> None:
    plain = Problem(problem.weight, problem.inputs, problem.group_size, centred=False)
    columns = trace_of(problem).columns(trace_of(problem).groups // 2)
    errors = []
    for variant in (problem, plain):
        damped = variant.damped_hessian(1e-9)
        best = spread(optimal_weight(variant.weight, damped, columns), columns, len(damped))
        errors.append(float(variant.error(best)))
    assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-9


def test_removing_all_groups_loses_everything_except_the_mean_output() -> None:
    plain, centred = (random_problem(5, 8, 30, centred=centred) for centred in (False, True))
    torch.testing.assert_close(trace_of(plain).errors[-1].item(), 1.0)
    share = centred.effective_inputs @ centred.weight.T
    expected = share.square().sum() / (centred.inputs @ centred.weight.T).square().sum()
    torch.testing.assert_close(trace_of(centred).errors[-1], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_weight(dtype: torch.dtype) -> None:
    problem = random_problem(6, 8, 12, 2, centred=True)
    weight = problem.weight.to(dtype).requires_grad_()
    trace = prune(weight, problem.hessian.float(), 2, mean=problem.mean.float())
    exact = prune(weight.detach().double(), problem.hessian, 2, mean=problem.mean)
    assert trace.errors.dtype == torch.float64
    assert trace.weight(5).dtype == trace.bias_shift(5).dtype == dtype
    assert not trace.weight(5).requires_grad
    tolerance = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(trace.weight(5).double(), exact.weight(5), rtol=tolerance, atol=10 * tolerance)


def test_obs_has_smaller_errors_than_the_baselines() -> None:
    problem = random_problem(7, 16, 60, samples=200)
    for method in METHODS[1:]:
        for update in (True, False):
            assert trace_of(problem).errors[40] < trace_of(problem, method=method, update=update).errors[40]


@pytest.mark.parametrize("group_size", [1, 4])
def test_baselines_remove_groups_by_increasing_score(group_size: int) -> None:
    problem = random_problem(8, 8, 10, group_size)
    importance = problem.weight.square().sum(0)
    by_magnitude = importance.view(-1, group_size).sum(1).argsort()
    by_activation = (importance * problem.hessian.diagonal()).view(-1, group_size).sum(1).argsort()
    assert torch.equal(trace_of(problem, method="magnitude").order, by_magnitude)
    assert torch.equal(trace_of(problem, method="activation").order, by_activation)
    assert not torch.equal(by_magnitude, by_activation)
    first = trace_of(problem, method="scores-once").order[0]
    assert first == trace_of(problem).order[0]

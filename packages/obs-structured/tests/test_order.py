"""The order of removal is that of Algorithm 1."""

import obs_structured._blocked as blocked
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from obs_problems import Problem, algorithm_1, problems, random_problem
from obs_structured import prune


def order_of(problem: Problem, **options: object) -> list[int]:
    trace = prune(
        problem.weight, problem.hessian, problem.group_size, mean=problem.mean, damping=0.01, **options
    )
    return trace.order.tolist()


@settings(max_examples=150)
@given(problem=problems(flaw="none") | problems(flaw="even"), block=st.sampled_from([2, 6, 96]))
def test_order_equals_algorithm_1(problem: Problem, block: int) -> None:
    expected, gap = algorithm_1(problem.weight, problem.damped_hessian(0.01), problem.group_size)
    assume(gap > 1e-6)  # between groups of equal cost, any order is right
    with pytest.MonkeyPatch.context() as patch:
        # Small blocks with few candidates: many blocks, which are often cut short.
        patch.setattr(blocked, "BLOCK_COLUMNS", block)
        patch.setattr(blocked, "SURPLUS", 1.0)
        patch.setattr(blocked, "SPARE_COLUMNS", 0)
        assert order_of(problem) == expected


@pytest.mark.parametrize(("groups", "group_size"), [(230, 1), (80, 3), (60, 4), (12, 32)])
@pytest.mark.parametrize("surplus", [1.0, 1.4])
@pytest.mark.parametrize(("flaw", "centred"), [("none", True), ("even", False)])
def test_order_equals_algorithm_1_over_many_blocks(
    groups: int, group_size: int, surplus: float, flaw: str, centred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "SURPLUS", surplus)
    problem = random_problem(1, 24, groups, group_size, samples=300, centred=centred, flaw=flaw)
    expected, gap = algorithm_1(problem.weight, problem.damped_hessian(0.01), group_size)
    assert gap > 1e-8
    assert order_of(problem) == expected


def test_without_verification_the_order_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3, 16, 150, samples=150)
    expected, _ = algorithm_1(problem.weight, problem.damped_hessian(0.01), 1)
    monkeypatch.setattr(blocked, "SURPLUS", 1.0)
    assert order_of(problem) == expected
    monkeypatch.setattr(blocked, "_verified_steps", lambda *arguments: len(arguments[4]))
    assert order_of(problem) != expected


def test_order_equals_algorithm_1_for_groups_of_almost_equal_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "SURPLUS", 1.0)
    found = []
    for seed in (0, 2):
        problem = random_problem(seed, 10, 80, 3, samples=500, flaw="even")
        expected, gap = algorithm_1(problem.weight, problem.damped_hessian(0.01), 3)
        assert gap > 1e-7
        assert order_of(problem) == expected
        found.append((problem, expected))
    # Control: with part of v set to zero, the costs are slightly wrong, and so is the order.
    monkeypatch.setattr(blocked, "_upper_blocks", lambda matrix, g: matrix.triu())
    assert all(order_of(problem) != expected for problem, expected in found)


def test_order_differs_from_scores_once() -> None:
    problem = random_problem(4, 16, 40, samples=60)
    expected, _ = algorithm_1(problem.weight, problem.damped_hessian(0.01), 1)
    assert order_of(problem, method="scores-once") != expected


@settings(max_examples=60)
@given(problem=problems(flaw="none"), seed=st.integers(0, 2**31), diagonal=st.booleans())
def test_order_under_a_metric_equals_algorithm_1_on_the_transformed_weight(
    problem: Problem, seed: int, diagonal: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = len(problem.weight)
    root = torch.randn(rows, rows, generator=generator, dtype=torch.float64)
    root = root.diagonal().diag() if diagonal else root
    metric = root.T @ root
    expected, gap = algorithm_1(root @ problem.weight, problem.damped_hessian(0.01), problem.group_size)
    assume(gap > 1e-6)
    assert order_of(problem, metric=metric.diagonal() if diagonal else metric) == expected


def test_a_metric_changes_the_order() -> None:
    problem = random_problem(5, 8, 30)
    assert order_of(problem, metric=torch.tensor([1.0] + [1e-3] * 7)) != order_of(problem)


@pytest.mark.parametrize(("flaw", "centred"), [("dead", False), ("dead", True), ("constant", True)])
@pytest.mark.parametrize("group_size", [1, 3])
def test_groups_that_never_vary_are_removed_first_at_no_cost(
    flaw: str, centred: bool, group_size: int
) -> None:
    problem = random_problem(6, 8, 12, group_size, centred=centred, flaw=flaw)
    trace = prune(problem.weight, problem.hessian, group_size, mean=problem.mean)
    assert trace.order[:4].tolist() == [1, 4, 7, 10]
    assert (trace.errors[:5] == 0).all()
    assert trace.errors[5] > 0


def test_without_a_mean_constant_columns_have_a_cost() -> None:
    problem = random_problem(6, 8, 12, flaw="constant")
    trace = prune(problem.weight, problem.hessian)
    assert trace.errors[4] > 0


@pytest.mark.parametrize("method", ["obs", "scores-once", "activation", "magnitude"])
def test_results_are_reproducible(method: str) -> None:
    problem = random_problem(7, 16, 150, samples=100, flaw="duplicate")
    first, second = (prune(problem.weight, problem.hessian, method=method) for _ in range(2))
    assert torch.equal(first.order, second.order)
    assert torch.equal(first.errors, second.errors)
    assert torch.equal(first.weight(70), second.weight(70))


def test_progress_increases_to_the_number_of_groups() -> None:
    problem = random_problem(8, 4, 250, flaw="dead")
    seen: list[tuple[int, int]] = []
    prune(problem.weight, problem.hessian, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (250, 250)
    assert {total for _, total in seen} == {250}


@pytest.mark.parametrize("method", ["obs", "scores-once", "magnitude"])
@pytest.mark.parametrize("update", [True, False])
def test_progress_ends_with_all_groups_for_every_method(method: str, update: bool) -> None:
    problem = random_problem(8, 4, 12)
    seen: list[tuple[int, int]] = []
    prune(
        problem.weight,
        problem.hessian,
        method=method,
        update=update,
        progress=lambda *call: seen.append(call),
    )
    assert seen[-1] == (12, 12)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("method", ["obs", "scores-once", "activation", "magnitude"])
@pytest.mark.parametrize("samples", ["one", "equal"])
def test_constant_inputs_are_absorbed_by_the_bias(method: str, samples: str) -> None:
    inputs = random_problem(9, 4, 12).inputs[:1].expand(1 if samples == "one" else 5, -1)
    weight = random_problem(9, 4, 12).weight
    hessian = 2 * inputs.T @ inputs / len(inputs)
    trace = prune(weight, hessian, mean=inputs.mean(0), method=method)
    assert trace.errors.abs().max() < 1e-12
    for k in range(13):
        output = trace.weight(k) @ inputs[0][trace.columns(k)] + trace.bias_shift(k)
        torch.testing.assert_close(output, weight @ inputs[0])

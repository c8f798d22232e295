"""Budgets, reachable targets, and the exact solution of a single prior."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from latency_profiler import Environment, LatencyCurve, LatencyTable
from ziplm import UnreachableTarget, UsageError
from ziplm.architectures.base import Branch, Size
from ziplm.options.targets import Target
from ziplm.stages.choices import SECONDS, Choices, best_uniform
from ziplm.stages.levels import BranchLevels, size_grid
from ziplm.stages.search import find_levels
from ziplm_choices import (
    BRANCHES,
    RIGHT,
    all_levels,
    choices_with,
    parts_of,
    predicted,
    true_loss,
    true_parts,
)
from ziplm_models import HEADS, WIDTH
from ziplm_pipeline import linear_table


def test_the_error_for_an_unreachable_target_names_what_is_reachable() -> None:
    choices = choices_with(one=RIGHT)
    # 1 ms is fixed; each layer takes 1.3 + 2 ms, of which a tenth stays when its branches are removed.
    assert choices.dense_seconds == pytest.approx(1e-3 + 3 * 3.3e-3)
    assert choices.smallest_seconds == pytest.approx(1e-3 + 3 * 0.33e-3)
    with pytest.raises(UnreachableTarget) as caught:
        choices.require_reachable({SECONDS: choices.dense_seconds / 6}, "target 6x")
    assert str(caught.value) == (
        "target 6x cannot be reached: with everything removed, the model would still take "
        "1.99 ms of 10.9 ms; ask for at most 5.47x"
    )
    # The share is that of the limit, and not of the fixed part alone (9 %), which would promise 10.9x.
    assert choices.reach_lines() == [
        "dense model: 10.9 ms",
        "reachable: up to 5.5x; with everything removed, 18% of the time would stay",
    ]
    choices.require_reachable({SECONDS: choices.dense_seconds / 5.47}, "the speedup of the hint")
    with pytest.raises(
        UsageError, match=r"target 90ms is slower than the dense model; ask for less than 10\.9 ms$"
    ):
        choices.require_reachable({SECONDS: 0.09}, "target 90ms")


def test_the_smallest_reachable_budget_can_be_met() -> None:
    choices = choices_with(one=RIGHT)
    seconds = choices.smallest_seconds
    choices.require_reachable({SECONDS: seconds}, "everything")
    found = find_levels(choices, {SECONDS: seconds}, ["one"], true_loss, true_parts)
    assert choices.sizes(found.levels) == {"attention": [0] * 3, "ffn": [0] * 3}


def test_a_removed_branch_has_a_single_level_and_counts_in_the_dense_time() -> None:
    gone = Branch(0, "attention", 0, 4)
    levels = [BranchLevels(gone, (Size(0, 4),)), all_levels(BRANCHES[1])]
    priors = {BRANCHES[1].name: {"one": torch.linspace(0, 1, WIDTH + 1)}}
    choices = Choices(levels, priors, linear_table())
    found = find_levels(
        choices,
        {SECONDS: choices.smallest_seconds * 1.5},
        ["one"],
        lambda sizes: float(sum(size.groups for size in sizes)),
        parts_of(lambda sizes: 0.0),
    )
    assert found.levels[0] == 0
    assert choices.chosen(found.levels)[0] == Size(0, 4)
    dense = choices.table.curves["attention"](HEADS) + choices.table.curves["ffn"](WIDTH)
    assert choices.dense_seconds == pytest.approx(choices.table.fixed + dense)


def test_all_budgets_are_met_at_once() -> None:
    parameters = [[float(100 * size.groups) for size in all_levels(branch).sizes] for branch in BRANCHES]
    slow = choices_with(one=RIGHT)
    choices = Choices(slow.levels, slow._priors, slow.table, {"params": parameters})
    budgets = {SECONDS: choices.dense_seconds / 1.2, "params": 0.3 * sum(row[0] for row in parameters)}
    found = find_levels(choices, budgets, ["one"], true_loss, true_parts, evaluations=20)
    assert choices.total("params", found.levels) <= budgets["params"]
    assert predicted(choices, found.levels) <= budgets[SECONDS]
    alone = find_levels(slow, {SECONDS: budgets[SECONDS]}, ["one"], true_loss, true_parts, evaluations=20)
    assert choices.total("params", alone.levels) > budgets["params"]  # control: the second budget binds
    with pytest.raises(UnreachableTarget, match="with everything removed 0 params are left"):
        choices.require_reachable({"params": -1.0}, "target")


def test_the_hint_for_a_limit_that_is_too_low_names_one_that_can_be_met() -> None:
    rest = 2057.0  # parameters that stay when all groups of a branch are removed
    costs = [[rest + 100 * size.groups for size in all_levels(m).sizes] for m in BRANCHES]
    plain = choices_with(one=RIGHT)
    choices = Choices(plain.levels, plain._priors, plain.table, {"params": costs, "flops": costs})
    with pytest.raises(UnreachableTarget) as caught:
        choices.require_reachable({"params": 1000.0}, "target params1000")
    found = re.search(
        r"give a limit of at least (\d+) params, or a sparsity of at most ([.\d]+)$", caught.value.hint
    )
    assert found is not None, caught.value.hint
    limits = (("params", float(found[1])),), (("sparsity", float(found[2])),)
    for limit in limits:
        choices.require_reachable(choices.budgets(Target("size", 0.0, limit)), "the limit of the hint")
    with pytest.raises(UnreachableTarget, match=r"; give a limit of at least 12342 flops$"):
        choices.require_reachable({"flops": 1000.0}, "target flops1000")


def test_the_uniform_solution_is_the_best_of_all_uniform_assignments() -> None:
    plain = choices_with(one=RIGHT)
    choices = Choices(plain.levels, plain._priors, plain.table, uniform=True)
    budgets = {SECONDS: choices.dense_seconds / 2}
    found = find_levels(choices, budgets, ["one"], true_loss, true_parts)
    sizes = choices.sizes(found.levels)
    assert all(len(set(own)) == 1 for own in sizes.values())
    assert predicted(choices, found.levels) <= budgets[SECONDS]
    problem = choices.problem("one", budgets)
    kinds = [own.branch.kind for own in choices.levels]
    counts = {own.branch.kind: len(own.sizes) for own in choices.levels}
    possible = [
        [by_kind[kind] for kind in kinds]
        for heads in range(counts["attention"])
        for width in range(counts["ffn"])
        for by_kind in [{"attention": heads, "ffn": width}]
    ]
    fitting = [true_loss(choices.chosen(levels)) for levels in possible if problem.fits(np.array(levels))]
    assert true_loss(choices.chosen(best_uniform(problem, choices.levels))) == pytest.approx(min(fitting))


def made_up_choices(seconds: Callable[[float], float]) -> Choices:
    """Return choices of twelve branches whose harm grows with the square of the share that is removed."""
    generator = np.random.default_rng(0)
    levels, priors = [], {}
    for layer in range(6):
        for kind, groups in (("attention", 12), ("ffn", 3072)):
            branch = Branch(layer, kind, groups, 64 if kind == "attention" else 1)  # type: ignore[arg-type]
            levels.append(all_levels(branch))
            share = torch.linspace(0, 1, groups + 1)
            priors[branch.name] = {"own": generator.uniform(1, 1.5) * share**2}
    curves = {
        kind: LatencyCurve(tuple(sizes), tuple(seconds(size / sizes[0]) for size in sizes))
        for kind, sizes in (("attention", size_grid("attention", 12)), ("ffn", size_grid("ffn", 3072)))
    }
    return Choices(levels, priors, LatencyTable(Environment.current(), 0.5, curves))


def shares_left(choices: Choices) -> list[float]:
    levels = choices.solve("own", {"seconds": choices.dense_seconds / 2})
    left = zip(choices.levels, levels, strict=True)
    return [own.sizes[level].groups / own.branch.groups for own, level in left]


def test_where_overhead_dominates_whole_branches_are_removed() -> None:
    left = shares_left(made_up_choices(lambda share: 0.9 + 0.1 * share if share else 0.0))
    assert sum(share == 0 for share in left) >= 6
    assert all(share == 0 or share > 0.5 for share in left)


def test_where_time_is_proportional_to_size_all_branches_stay_and_become_smaller() -> None:
    left = shares_left(made_up_choices(lambda share: share))
    assert all(0.2 < share < 0.8 for share in left)

"""Levels within the budget: exact solves, the best of them, and a search that must prove itself elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ziplm import BadRun, UnreachableTarget, UsageError
from ziplm.architectures.base import Branch
from ziplm.stages.levels import BranchLevels, size_grid
from ziplm.stages.choices import Priors
from ziplm.stages.choices import Choices, SECONDS, best_uniform
from ziplm.stages.search import Found, find_levels
from ziplm.stages.priors import prior_names_for
from ziplm_models import HEADS, WIDTH
from ziplm_pipeline import linear_table

MODULES = [
    Branch(layer, kind, HEADS if kind == "attention" else WIDTH, 1)  # type: ignore[arg-type]
    for layer in range(3)
    for kind in ("attention", "ffn")
]
HARM = torch.tensor([0.3, 5.0, 1.0, 0.1, 2.0, 0.7])
"""What losing all of a module really does."""


def removed_by(module: Branch) -> BranchLevels:
    return BranchLevels(module, tuple(size_grid(module.kind, module.groups)))


def true_loss(removed: Sequence[int]) -> float:
    shares = torch.tensor([k / m.groups for k, m in zip(removed, MODULES, strict=True)])
    return float((HARM * shares.square()).sum())


class CountedLoss:
    """The true loss, up to a call that raises."""

    def __init__(self, last: int, error: type[BaseException]) -> None:
        self.calls, self.last, self.error = 0, last, error

    def __call__(self, removed: Sequence[int]) -> float:
        self.calls += 1
        if self.calls == self.last:
            raise self.error
        return true_loss(removed)


def choices_with(**sizes: Sequence[float]) -> Choices:
    """Priors by name: how much each module is thought to matter."""
    priors: dict[str, Priors] = {
        m.name: {
            name: torch.tensor([size[i] * (k / m.groups) ** 2 for k in range(m.groups + 1)])
            for name, size in sizes.items()
        }
        for i, m in enumerate(MODULES)
    }
    return Choices([removed_by(m) for m in MODULES], priors, linear_table())


RIGHT, WRONG = HARM.tolist(), HARM.flip(0).tolist()


def predicted(choices: Choices, found: Found) -> float:
    return choices.table.predict(choices.sizes(found.levels))


@settings(max_examples=12)
@given(
    share=st.floats(0, 1),
    method=st.sampled_from(["direct", "prior", "ziplm"]),
    seed=st.integers(0, 100),
    sizes=st.lists(st.floats(0, 10), min_size=6, max_size=6),
)
def test_what_is_found_is_within_the_budget(share: float, method: str, seed: int, sizes: list[float]) -> None:
    choices = choices_with(one=sizes, other=WRONG)
    seconds = choices.smallest_seconds + share * (choices.dense_seconds - choices.smallest_seconds)
    found = find_levels(
        choices,
        {SECONDS: seconds},
        ["one", "other"],
        true_loss,
        true_loss,
        method=method,
        evaluations=15,
        seed=seed,
    )
    assert predicted(choices, found) <= seconds * (1 + 1e-12)
    assert set(found.prior_losses) == {"one", "other"}
    best = min(true_loss(choices.removed(found.levels)), *found.prior_losses.values())
    if method != "ziplm":
        assert (
            true_loss(choices.removed(found.levels)) <= found.start_loss == best + (found.start_loss - best)
        )


def test_the_best_prior_by_the_loss_is_where_the_search_starts() -> None:
    choices = choices_with(wrong=WRONG, right=RIGHT)
    seconds = choices.dense_seconds / 2
    found = find_levels(choices, {SECONDS: seconds}, ["wrong", "right"], true_loss, true_loss, method="prior")
    assert found.prior == "right"
    assert found.prior_losses["right"] < found.prior_losses["wrong"]
    assert found.searched_loss is None
    assert found.evaluations == 2
    assert found.start_loss == true_loss(choices.removed(found.levels))
    only_wrong = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_loss, method="prior")
    assert only_wrong.prior == "wrong"
    assert only_wrong.levels != found.levels


def test_the_search_improves_on_a_wrong_prior() -> None:
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    found = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_loss, evaluations=50)
    assert found.searched_loss is not None
    assert found.searched_loss < 0.7 * found.start_loss
    assert true_loss(choices.removed(found.levels)) == found.searched_loss
    assert found.evaluations == 50


@pytest.mark.parametrize(("method", "kept"), [("direct", False), ("ziplm", True)])
def test_a_search_that_other_samples_do_not_confirm_is_dropped(method: str, kept: bool) -> None:
    """The paper's own configuration has no such judge, and keeps what it finds."""
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    start = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_loss, method="prior")
    first = choices.removed(start.levels)

    def judge(removed: Sequence[int]) -> float:
        return 1.0 if list(removed) == first else 2.0

    found = find_levels(
        choices, {SECONDS: seconds}, ["wrong"], true_loss, judge, method=method, evaluations=50
    )
    assert (found.start_loss, found.searched_loss) == (1.0, 2.0)
    assert (found.levels != start.levels) is kept


def test_equal_on_other_samples_is_not_better() -> None:
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    start = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_loss, method="prior")
    found = find_levels(
        choices, {SECONDS: seconds}, ["wrong"], true_loss, lambda removed: 1.0, evaluations=20
    )
    assert found.levels == start.levels


def test_nothing_is_evaluated_twice_and_no_more_than_asked() -> None:
    choices = choices_with(one=WRONG, other=RIGHT)
    asked: list[tuple[int, ...]] = []

    def loss(removed: Sequence[int]) -> float:
        asked.append(tuple(removed))
        return true_loss(removed)

    steps: list[int] = []
    find_levels(
        choices,
        {SECONDS: choices.dense_seconds / 2},
        ["one", "other"],
        loss,
        true_loss,
        evaluations=30,
        progress=lambda done, best: steps.append(done),
    )
    assert len(asked) == len(set(asked)) == 30
    assert steps == list(range(1, 31))


@pytest.mark.parametrize("method", ["direct", "ziplm"])
def test_a_killed_search_goes_on_to_the_same_result(tmp_path: Path, method: str) -> None:
    choices = choices_with(one=WRONG, other=RIGHT[::2] + RIGHT[1::2])
    seconds = choices.dense_seconds / 2.5

    def run(loss: Callable[[Sequence[int]], float], checkpoint: Path) -> Found:
        return find_levels(
            choices,
            {SECONDS: seconds},
            ["one", "other"],
            loss,
            true_loss,
            method=method,
            evaluations=40,
            seed=3,
            checkpoint=checkpoint,
        )

    whole = run(true_loss, tmp_path / "whole.json")
    with pytest.raises(MemoryError):
        run(CountedLoss(25, MemoryError), tmp_path / "killed.json")
    rest = CountedLoss(25, MemoryError)  # what was known is not asked for again
    resumed = run(rest, tmp_path / "killed.json")
    assert 0 < rest.calls < 25
    assert resumed == whole
    assert Found.from_dict(resumed.to_dict()) == resumed


def test_ctrl_c_is_not_a_result() -> None:
    choices = choices_with(one=WRONG)
    loss = CountedLoss(5, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        find_levels(choices, {SECONDS: choices.dense_seconds / 2}, ["one"], loss, true_loss)


def test_a_damaged_checkpoint_is_told_about(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text("{")
    choices = choices_with(one=WRONG)
    with pytest.raises(BadRun, match=r"search.json is damaged; delete it and run the command again"):
        find_levels(
            choices,
            {SECONDS: choices.dense_seconds / 2},
            ["one"],
            true_loss,
            true_loss,
            checkpoint=tmp_path / "search.json",
        )


def test_an_unknown_prior_is_told_about() -> None:
    choices = choices_with(one=WRONG, other=WRONG)
    with pytest.raises(UsageError, match="prior exact is not known here; use auto, or one of one, other"):
        find_levels(choices, {SECONDS: choices.dense_seconds / 2}, ["exact"], true_loss, true_loss)


def test_an_unreachable_target_says_what_can_be_reached() -> None:
    choices = choices_with(one=RIGHT)
    table = choices.table
    # Fixed 1 ms; three times 1.3 + 2 ms, of which a tenth stays.
    assert choices.dense_seconds == pytest.approx(1e-3 + 3 * 3.3e-3)
    assert choices.smallest_seconds == pytest.approx(1e-3 + 3 * 0.33e-3)
    with pytest.raises(UnreachableTarget) as caught:
        choices.require_reachable({SECONDS: choices.dense_seconds / 6}, "target 6x")
    assert str(caught.value) == (
        "target 6x cannot be reached: with everything removed the model is 5.47x as fast (1.99 ms); "
        "9% of its time is outside of what can be pruned: ask for at most 5.47x"
    )
    assert table.fixed / choices.dense_seconds == pytest.approx(0.0917, abs=1e-4)
    choices.require_reachable({SECONDS: choices.dense_seconds / 5.47}, "what the hint says")
    with pytest.raises(
        UsageError, match="target 90ms is slower than the dense model; ask for a speedup above 1"
    ):
        choices.require_reachable({SECONDS: 0.09}, "target 90ms")


def test_the_last_reachable_budget_can_be_met() -> None:
    choices = choices_with(one=RIGHT)
    seconds = choices.smallest_seconds
    choices.require_reachable({SECONDS: seconds}, "everything")
    found = find_levels(choices, {SECONDS: seconds}, ["one"], true_loss, true_loss)
    assert choices.sizes(found.levels) == {"attention": [0] * 3, "ffn": [0] * 3}


def test_modules_that_are_gone_have_nothing_to_choose() -> None:
    gone = Branch(0, "attention", 0, 4)
    levels = [BranchLevels(gone, (0,)), removed_by(MODULES[1])]
    priors = {MODULES[1].name: {"one": torch.linspace(0, 1, WIDTH + 1)}}
    choices = Choices(levels, priors, linear_table())
    found = find_levels(
        choices, {SECONDS: choices.smallest_seconds * 1.5}, ["one"], lambda r: float(sum(r)), lambda r: 0.0
    )
    assert found.levels[0] == 0
    assert choices.removed(found.levels)[0] == 0
    dense = choices.table.curves["attention"](HEADS) + choices.table.curves["ffn"](WIDTH)
    assert choices.dense_seconds == pytest.approx(choices.table.fixed + dense)  # of what it once was


def test_all_budgets_are_kept_at_once() -> None:
    parameters = [[float(100 * size) for size in removed_by(m).sizes] for m in MODULES]
    slow = choices_with(one=RIGHT)
    choices = Choices(slow.levels, slow._priors, slow.table, {"params": parameters})
    budgets = {SECONDS: choices.dense_seconds / 1.2, "params": 0.3 * sum(row[0] for row in parameters)}
    found = find_levels(choices, budgets, ["one"], true_loss, true_loss, evaluations=20)
    assert choices.total("params", found.levels) <= budgets["params"]
    assert predicted(choices, found) <= budgets[SECONDS]
    alone = find_levels(slow, {SECONDS: budgets[SECONDS]}, ["one"], true_loss, true_loss, evaluations=20)
    assert choices.total("params", alone.levels) > budgets["params"]  # control: the second budget binds
    with pytest.raises(UnreachableTarget, match="with everything removed 0 params are left"):
        choices.require_reachable({"params": -1.0}, "target")


def test_uniform_sizes_are_the_best_of_their_kind() -> None:
    plain = choices_with(one=RIGHT)
    choices = Choices(plain.levels, plain._priors, plain.table, uniform=True)
    budgets = {SECONDS: choices.dense_seconds / 2}
    found = find_levels(choices, budgets, ["one"], true_loss, true_loss)
    sizes = choices.sizes(found.levels)
    assert all(len(set(own)) == 1 for own in sizes.values())
    assert predicted(choices, found) <= budgets[SECONDS]
    problem = choices.problem("one", budgets)
    kinds = [module.module.kind for module in choices.levels]
    counts = {module.module.kind: len(module.sizes) for module in choices.levels}
    possible = [
        [own[kind] for kind in kinds]
        for heads in range(counts["attention"])
        for width in range(counts["ffn"])
        for own in [{"attention": heads, "ffn": width}]
    ]
    fitting = [true_loss(choices.removed(own)) for own in possible if problem.fits(np.array(own))]
    assert true_loss(choices.removed(best_uniform(problem, choices.levels))) == pytest.approx(min(fitting))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("own", "stream"), ["stream"]),
        (("own", "stream", "scalar", "factored"), ["factored", "scalar", "stream"]),
        (("stream", "exact", "factored"), ["exact", "factored", "stream"]),
    ],
)
def test_priors_that_are_worth_a_try(names: tuple[str, ...], expected: list[str]) -> None:
    priors = {m.name: dict.fromkeys(names, torch.zeros(2)) for m in MODULES}
    assert prior_names_for(priors) == expected
    priors[MODULES[0].name].pop(expected[0])
    assert expected[0] not in prior_names_for(priors)


@given(st.integers(1, 5000))
def test_the_grid_falls_from_dense_to_nothing(dense: int) -> None:
    for kind in ("attention", "ffn"):
        sizes = size_grid(kind, dense)  # type: ignore[arg-type]
        assert sizes[0] == dense
        assert sizes[-1] == 0
        assert sizes == sorted(set(sizes), reverse=True)
    assert size_grid("attention", dense) == list(range(dense, -1, -1))


def test_the_grid_is_the_papers() -> None:
    sizes = size_grid("ffn", 3072)
    assert sizes[:2] == [3072, 2764]
    assert {302, 33} <= set(sizes)
    assert len(sizes) == 45

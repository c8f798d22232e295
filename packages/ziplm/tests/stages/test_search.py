"""The search meets its budget, starts from the best prior, and keeps only confirmed results."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ziplm import BadRun, UnreachableTarget, UsageError
from ziplm.architectures.base import Size
from ziplm.stages.choices import SECONDS, Choices
from ziplm.stages.search import PATIENCE, Found, find_levels
from ziplm.tasks.heads import Divergence
from ziplm_choices import RIGHT, WRONG, CountedLoss, choices_with, parts_of, predicted, true_loss, true_parts


@settings(max_examples=12)
@given(
    share=st.floats(0, 1),
    method=st.sampled_from(["direct", "prior", "ziplm"]),
    seed=st.integers(0, 100),
    sizes=st.lists(st.floats(0, 10), min_size=6, max_size=6),
)
def test_the_levels_found_are_within_the_budget(
    share: float, method: str, seed: int, sizes: list[float]
) -> None:
    choices = choices_with(one=sizes, other=WRONG)
    seconds = choices.smallest_seconds + share * (choices.dense_seconds - choices.smallest_seconds)
    found = find_levels(
        choices,
        {SECONDS: seconds},
        ["one", "other"],
        true_loss,
        true_parts,
        method=method,
        evaluations=15,
        seed=seed,
    )
    assert predicted(choices, found.levels) <= seconds * (1 + 1e-12)
    assert set(found.prior_losses) == {"one", "other"}
    best = min(true_loss(choices.chosen(found.levels)), *found.prior_losses.values())
    if method != "ziplm":
        assert true_loss(choices.chosen(found.levels)) <= found.start_loss == best + (found.start_loss - best)


def test_the_search_starts_from_the_solution_with_the_smallest_loss() -> None:
    choices = choices_with(wrong=WRONG, right=RIGHT)
    seconds = choices.dense_seconds / 2
    found = find_levels(
        choices, {SECONDS: seconds}, ["wrong", "right"], true_loss, true_parts, method="prior"
    )
    assert found.prior == "right"
    assert found.prior_losses["right"] < found.prior_losses["wrong"]
    assert found.searched_loss is None
    assert found.evaluations == 2
    assert found.start_loss == true_loss(choices.chosen(found.levels))
    only_wrong = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_parts, method="prior")
    assert only_wrong.prior == "wrong"
    assert only_wrong.levels != found.levels


def test_the_search_improves_on_a_wrong_prior() -> None:
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    found = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_parts, evaluations=50)
    assert found.searched_loss is not None
    assert found.searched_loss < 0.8 * found.start_loss
    assert true_loss(choices.chosen(found.levels)) == found.searched_loss
    assert PATIENCE < found.evaluations <= 50


@pytest.mark.parametrize(("method", "evaluations"), [("direct", 1 + PATIENCE), ("ziplm", 50)])
def test_a_search_ends_where_nothing_improves(method: str, evaluations: int) -> None:
    """The search of the paper always makes all evaluations."""
    choices = choices_with(right=RIGHT)
    budgets = {SECONDS: choices.dense_seconds / 2}
    best = choices.chosen(choices.solve("right", budgets))

    def loss(sizes: Sequence[Size]) -> float:
        return 1.0 if list(sizes) == best else 2.0

    found = find_levels(choices, budgets, ["right"], loss, true_parts, method=method, evaluations=50)
    assert found.evaluations == evaluations


@pytest.mark.parametrize(("method", "kept"), [("direct", False), ("ziplm", True)])
def test_a_result_that_is_worse_on_other_samples_is_dropped(method: str, kept: bool) -> None:
    """The search of the paper has no such check and keeps its result."""
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    start = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_parts, method="prior")
    first = choices.chosen(start.levels)

    def judge(sizes: Sequence[Size]) -> float:
        return 1.0 if list(sizes) == first else 2.0

    found = find_levels(
        choices, {SECONDS: seconds}, ["wrong"], true_loss, parts_of(judge), method=method, evaluations=50
    )
    assert (found.start_loss, found.searched_loss) == (1.0, 2.0)
    assert (found.levels != start.levels) is kept


def test_a_result_that_is_equal_on_other_samples_is_dropped() -> None:
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    start = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_parts, method="prior")
    found = find_levels(
        choices, {SECONDS: seconds}, ["wrong"], true_loss, parts_of(lambda sizes: 1.0), evaluations=20
    )
    assert found.levels == start.levels


@pytest.mark.parametrize(("losses", "kept"), [((0.1, 1.8), False), ((0.9, 0.95), True)])
def test_a_result_that_may_be_better_by_chance_is_dropped(losses: tuple[float, float], kept: bool) -> None:
    """Both results have a loss of less than 1 on the judging samples, but the first not in both batches."""
    choices = choices_with(wrong=WRONG)
    seconds = choices.dense_seconds / 2
    start = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, true_parts, method="prior")
    first = choices.chosen(start.levels)

    def judge(sizes: Sequence[Size]) -> list[Divergence]:
        return [Divergence(loss, 1) for loss in ((1.0, 1.0) if list(sizes) == first else losses)]

    found = find_levels(choices, {SECONDS: seconds}, ["wrong"], true_loss, judge, evaluations=50)
    assert found.searched_loss is not None
    assert found.searched_loss < found.start_loss == 1.0
    assert (found.levels != start.levels) is kept


def test_no_candidate_is_evaluated_twice_and_the_number_of_evaluations_is_kept() -> None:
    choices = choices_with(one=WRONG, other=RIGHT)
    asked: list[tuple[int, ...]] = []

    def loss(sizes: Sequence[Size]) -> float:
        asked.append(tuple(sizes))
        return true_loss(sizes)

    steps: list[int] = []
    find_levels(
        choices,
        {SECONDS: choices.dense_seconds / 2},
        ["one", "other"],
        loss,
        true_parts,
        evaluations=15,
        progress=lambda done, best: steps.append(done),
    )
    assert len(asked) == len(set(asked)) == 15
    assert steps == list(range(1, 16))


@pytest.mark.parametrize("method", ["direct", "ziplm"])
def test_a_killed_search_resumes_to_the_same_result(tmp_path: Path, method: str) -> None:
    choices = choices_with(one=WRONG, other=RIGHT[::2] + RIGHT[1::2])
    seconds = choices.dense_seconds / 2.5

    def run(loss: Callable[[Sequence[int]], float], checkpoint: Path) -> Found:
        return find_levels(
            choices,
            {SECONDS: seconds},
            ["one", "other"],
            loss,
            true_parts,
            method=method,
            evaluations=40,
            seed=3,
            checkpoint=checkpoint,
        )

    whole = run(true_loss, tmp_path / "whole.json")
    with pytest.raises(MemoryError):
        run(CountedLoss(25, MemoryError), tmp_path / "killed.json")
    rest = CountedLoss(25, MemoryError)  # known losses are not computed again
    resumed = run(rest, tmp_path / "killed.json")
    assert 0 < rest.calls < 25
    assert resumed == whole
    assert Found.from_dict(resumed.to_dict()) == resumed


def test_an_interrupted_search_raises_and_returns_no_result() -> None:
    choices = choices_with(one=WRONG)
    loss = CountedLoss(5, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        find_levels(choices, {SECONDS: choices.dense_seconds / 2}, ["one"], loss, true_parts)


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text("{")
    choices = choices_with(one=WRONG)
    with pytest.raises(BadRun, match=r"search.json is damaged; delete it and run the command again"):
        find_levels(
            choices,
            {SECONDS: choices.dense_seconds / 2},
            ["one"],
            true_loss,
            true_parts,
            checkpoint=tmp_path / "search.json",
        )


def test_budgets_that_exclude_each_other_are_reported() -> None:
    """Each of the two can be met alone: only small models are fast, and here only large ones are cheap."""
    plain = choices_with(one=RIGHT)
    opposite = [
        [float(levels.branch.groups - size.groups) for size in levels.sizes] for levels in plain.levels
    ]
    choices = Choices(plain.levels, plain._priors, plain.table, {"flops": opposite})
    budgets = {SECONDS: choices.dense_seconds / 3, "flops": 0.0}
    choices.require_reachable(budgets, "control")
    with pytest.raises(UnreachableTarget, match=r"cannot be met together: .*; loosen a limit, or ask for a"):
        find_levels(choices, budgets, ["one"], true_loss, true_parts)


def test_an_unknown_prior_is_refused() -> None:
    choices = choices_with(one=WRONG, other=WRONG)
    with pytest.raises(UsageError, match="prior exact is not known here; use auto, or one of one, other"):
        find_levels(choices, {SECONDS: choices.dense_seconds / 2}, ["exact"], true_loss, true_parts)

"""Candidates of a search race against the best so far, and a killed search resumes its races."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from ziplm.architectures.base import Size
from ziplm.stages.choices import SECONDS
from ziplm.stages.search import Found, find_levels
from ziplm_choices import RIGHT, WRONG, CountedLoss, choices_with, true_loss, true_parts


class Races:
    """A race that ends early, with an estimate, wherever the rival is better; it records the rivals."""

    def __init__(self, last: int = 10**9) -> None:
        self.rivals: list[float] = []
        self.last = last

    def __call__(self, sizes_and_rival: tuple[Sequence[Size], Sequence[Size]]) -> float:
        if len(self.rivals) == self.last:
            raise MemoryError
        own, rival = map(true_loss, sizes_and_rival)
        self.rivals.append(rival)
        return own if own < rival else rival + 0.7 * (own - rival) + 1e-9


def test_candidates_race_against_the_best_so_far() -> None:
    choices = choices_with(wrong=WRONG)
    budgets = {SECONDS: choices.dense_seconds / 2}
    races, losses = Races(), CountedLoss(10**9, MemoryError)
    found = find_levels(choices, budgets, ["wrong"], losses, true_parts, race=races, evaluations=50)
    assert losses.calls == 1  # the prior's solution, before there is a rival
    assert len(races.rivals) == found.evaluations - 1
    assert races.rivals == sorted(races.rivals, reverse=True)  # the best so far never gets worse
    assert found.searched_loss is not None
    assert found.searched_loss < 0.8 * found.start_loss
    paper = Races()
    find_levels(choices, budgets, ["wrong"], true_loss, true_parts, race=paper, method="ziplm", evaluations=9)
    assert not paper.rivals  # the paper's search evaluates every candidate in full


def test_solutions_of_priors_race_as_well() -> None:
    choices = choices_with(right=RIGHT, wrong=WRONG, same=RIGHT)
    budgets = {SECONDS: choices.dense_seconds / 2}
    names = ["right", "wrong", "same"]
    races, losses = Races(), CountedLoss(10**9, MemoryError)
    found = find_levels(choices, budgets, names, losses, true_parts, race=races, evaluations=3)
    assert losses.calls == 1  # of the first
    assert races.rivals[0] == found.prior_losses["right"]
    assert found.prior_losses["right"] == found.prior_losses["same"]  # known, so that there is no race
    assert found.prior_losses["right"] < found.prior_losses["wrong"]
    assert found.prior == "right"
    reverse, losses = Races(), CountedLoss(10**9, MemoryError)
    other = find_levels(choices, budgets, names[::-1], losses, true_parts, race=reverse, evaluations=3)
    assert other.prior_losses["right"] == found.prior_losses["right"]
    whole = find_levels(choices, budgets, names, true_loss, true_parts, evaluations=3)  # control: no race
    assert whole.prior_losses["wrong"] != found.prior_losses["wrong"]
    assert whole.levels == found.levels


def test_a_killed_search_resumes_its_races_to_the_same_result(tmp_path: Path) -> None:
    choices = choices_with(one=WRONG, other=RIGHT[::2] + RIGHT[1::2])

    def run(races: Races, checkpoint: Path) -> Found:
        return find_levels(
            choices,
            {SECONDS: choices.dense_seconds / 2.5},
            ["one", "other"],
            true_loss,
            true_parts,
            race=races,
            evaluations=40,
            seed=3,
            checkpoint=checkpoint,
        )

    whole = run(Races(), tmp_path / "whole.json")
    with pytest.raises(MemoryError):
        run(Races(last=20), tmp_path / "killed.json")
    rest = Races()
    assert run(rest, tmp_path / "killed.json") == whole
    assert 0 < len(rest.rivals) < 25

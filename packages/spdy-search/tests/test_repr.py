"""Results print themselves in one short line; their attributes hold everything."""

import numpy as np
import pytest
from spdy_problems import hidden_loss, latency_problem
from spdy_search import Evaluation, FitResult, FitRound, Problem, SearchResult, fit_budget, search


def test_the_repr_of_a_small_search_shows_all_levels():
    history = (Evaluation((0, 1), 2.5, 0.125),)
    result = SearchResult(np.array([0, 1]), 2.5, 4.0, history, interrupted=False)
    assert repr(result) == "SearchResult(levels=[0, 1], loss=2.5, evaluations=1, interrupted=False)"
    assert repr(history[0]) == "Evaluation(levels=[0, 1], loss=2.5, seconds=0.125)"


def test_the_repr_of_a_large_search_is_short():
    problem = latency_problem(24, 2, seed=3)
    result = search(problem, hidden_loss(problem, 3, "weights"), evaluations=20)
    text = repr(result)
    assert text.startswith(f"SearchResult(levels=[{', '.join(map(str, result.levels[:8]))}, ... 24 levels], ")
    assert text.endswith(f"loss={result.loss:.6g}, evaluations=20, interrupted=False)")
    assert "\n" not in text
    assert len(text) < 160
    assert len(repr(result.history[0])) < 160
    assert len(result.history) == 20
    assert len(result.levels) == len(result.history[0].levels) == 24


def test_the_repr_of_a_fit_is_short():
    problem = latency_problem(24, 2, seed=3)
    levels = search(problem, lambda levels: 1.0, method="prior").levels
    fit = fit_budget(problem, levels, lambda levels: 1.1 * problem.cost(levels), target=problem.budget)
    for shown in (fit, fit.rounds[0]):
        assert len(shown.levels) == 24
        assert "... 24 levels], cost=" in repr(shown)
        assert len(repr(shown)) < 160
        assert "\n" not in repr(shown)
    small = FitRound(np.array([1, 2]), 3.0, 4.0)
    assert repr(small) == "FitRound(levels=[1, 2], cost=3, measured=4)"
    assert repr(FitResult(small.levels, 3.0, 4.0, 5.0, (small,))) == (
        "FitResult(levels=[1, 2], cost=3, measured=4, target=5, rounds=1)"
    )


@pytest.mark.parametrize(("modules", "shown"), [(12, "0]"), (13, "0, ... 13 levels]")])
def test_only_long_assignments_are_shortened(modules, shown):
    text = repr(Evaluation((0,) * modules, 1.0, 0.0))
    assert f"{shown}, loss=1" in text
    assert text.count("0, ") == (11 if modules == 12 else 8)


def test_the_repr_of_a_problem_gives_its_size_and_budget():
    assert repr(Problem([[2, 1]] * 30, [[0, 1]] * 30, 45)) == "Problem(30 modules, 2 to 2 levels, cost ≤ 45)"

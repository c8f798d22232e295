"""Properties that every search has, whatever its method."""

import itertools
import math

import numpy as np
import pytest
from spdy_problems import METHODS, hidden_loss, latency_problem, two_budgets
from spdy_search import Problem, search, solve


class Recorder:
    """A loss that records the assignments it is called with."""

    def __init__(self, problem, loss):
        self.problem, self.loss, self.asked = problem, loss, []

    def __call__(self, levels):
        assert levels.dtype == np.int64
        assert self.problem.fits(levels)
        self.asked.append(tuple(levels.tolist()))
        value = self.loss(levels)
        levels[:] = -1  # a loss may modify its argument
        return value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [lambda: latency_problem(12, 3, seed=2), two_budgets])
def test_every_method_evaluates_distinct_assignments_within_budget(method, make):
    problem = make()
    loss = Recorder(problem, hidden_loss(problem, 1, "pairs"))
    result = search(problem, loss, evaluations=30, seed=4, method=method)
    assert len(set(loss.asked)) == len(loss.asked) == result.evaluations <= 30
    assert [evaluation.levels for evaluation in result.history] == loss.asked
    assert result.loss == min(evaluation.loss for evaluation in result.history)
    assert tuple(result.levels) == min(result.history, key=lambda evaluation: evaluation.loss).levels
    assert result.cost == problem.cost(result.levels)
    assert result.failed == 0
    assert not result.interrupted
    assert result.evaluations == (1 if method in ("prior", "uniform") else 30)


@pytest.mark.parametrize("method", METHODS)
def test_a_search_is_deterministic(method):
    problem = latency_problem(12, 3, seed=2)
    loss = hidden_loss(problem, 1, "curved")
    runs = [search(problem, loss, evaluations=25, seed=9, method=method) for _ in range(2)]
    assert [e.levels for e in runs[0].history] == [e.levels for e in runs[1].history]
    other = search(problem, loss, evaluations=25, seed=10, method=method)
    if method not in ("prior", "uniform"):
        assert [e.levels for e in runs[0].history] != [e.levels for e in other.history]


@pytest.mark.parametrize("unit", [1e-300, 2.0**-40, 1e300])
def test_the_unit_of_the_loss_does_not_matter(unit):
    problem = latency_problem(8, 2, seed=0)
    plain = hidden_loss(problem, 1, "pairs")
    one, other = (search(problem, lambda x, u=u: u * plain(x), evaluations=15) for u in (1.0, unit))
    assert [e.levels for e in one.history] == [e.levels for e in other.history]


def test_a_small_problem_is_searched_exhaustively():
    problem = Problem([[4, 2, 1]] * 3, [[0, 1, 3]] * 3, 8)
    loss = Recorder(problem, lambda levels: float(np.sin(levels @ [1, 5, 25])))
    result = search(problem, loss, evaluations=1000)
    every = [np.array(levels) for levels in itertools.product(range(3), repeat=3)]
    assert result.loss == min(math.sin(levels @ [1, 5, 25]) for levels in every if problem.fits(levels))
    assert result.evaluations == sum(map(problem.fits, every)) < 27


@pytest.mark.parametrize("method", METHODS)
def test_a_search_ends_when_there_is_nothing_new(method):
    problem = Problem([[1.0], [2.0]], [[0.0], [0.0]], 3)
    result = search(problem, lambda levels: 1.0, evaluations=50, method=method)
    assert result.evaluations == 1
    assert result.levels.tolist() == [0, 0]


@pytest.mark.parametrize("method", ["direct", "ziplm", "evolution"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_failed_evaluations_are_counted_and_never_win(method, bad):
    problem = latency_problem(10, 2, seed=3)
    plain = hidden_loss(problem, 3, "weights")
    result = search(
        problem,
        lambda levels: bad if levels.sum() % 3 == 0 else plain(levels),
        evaluations=40,
        method=method,
    )
    assert 0 < result.failed < result.evaluations == 40
    assert math.isfinite(result.loss)
    assert result.levels.sum() % 3 != 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_search_without_a_finite_loss_raises(method, bad):
    tried = 1 if method in ("prior", "uniform") else 15
    with pytest.raises(ValueError, match="no candidate had a finite loss") as caught:
        search(latency_problem(10, 2, seed=3), lambda levels: bad, evaluations=15, method=method)
    message = str(caught.value)
    assert f"({tried})" in message
    assert "check that the loss is finite" in message
    assert "checkpoint" not in message
    assert "\n" not in message


@pytest.mark.parametrize("finite", [1, 15])
def test_one_finite_loss_is_enough(finite):
    calls = itertools.count(1)
    result = search(
        latency_problem(10, 2, seed=3),
        lambda levels: 7.0 if next(calls) == finite else math.nan,
        evaluations=15,
    )
    assert result.failed == 14
    assert result.loss == 7.0
    assert tuple(result.levels) == result.history[finite - 1].levels


@pytest.mark.parametrize("method", ["direct", "evolution"])
def test_screening_evaluates_only_survivors(method):
    problem = latency_problem(12, 3, seed=2)
    plain = hidden_loss(problem, 1, "pairs")
    screened = []

    def screen(levels, fraction):
        assert 0 < fraction < 1
        screened.append(fraction)
        return plain(levels)

    result = search(problem, plain, evaluations=20, method=method, screen=screen)
    assert result.evaluations == 20
    assert len(screened) > 100
    unscreened = search(problem, plain, evaluations=20, method=method)
    # The screen equals the loss, so 20 evaluations see up to 160 candidates.
    assert result.loss <= unscreened.loss


def test_the_callback_reports_every_evaluation():
    problem = latency_problem(6, 2, seed=3)
    seen = []
    result = search(problem, hidden_loss(problem, 1, "pairs"), evaluations=12, callback=seen.append)
    assert [progress.evaluations for progress in seen] == list(range(1, 13))
    assert [progress.best for progress in seen] == np.minimum.accumulate(
        [e.loss for e in result.history]
    ).tolist()
    assert [progress.seconds for progress in seen] == [e.seconds for e in result.history]
    assert all(progress.total == 12 for progress in seen)


def test_starts_are_evaluated_first_and_the_search_continues_from_the_best():
    problem = latency_problem(12, 3, seed=2)
    plain = hidden_loss(problem, 1, "pairs")
    good = search(problem, plain, evaluations=80).levels
    result = search(problem, plain, evaluations=10, starts=[good, good, solve(problem)])
    assert result.history[0].levels == tuple(good)
    assert result.history[1].levels == tuple(solve(problem))
    assert result.loss <= plain(good)


def test_uniform_puts_every_module_at_the_same_fraction_of_its_levels():
    problem = Problem([[4, 3, 2, 1, 0], [4, 2, 0]], [[0, 1, 2, 3, 4], [0, 1, 2]], 4)
    assert search(problem, lambda levels: 1.0, method="uniform").levels.tolist() == [2, 1]
    rising = Problem([[1, 2, 9]], [[0, 1, 2]], 2)
    assert search(rising, lambda levels: 1.0, method="uniform").levels.tolist() == [0]


def test_a_search_ends_when_the_best_is_not_improved_on():
    problem = latency_problem(12, 3, seed=2)
    assert search(problem, problem.prior, evaluations=100).evaluations == 31  # the priors are perfect
    patient = search(problem, problem.prior, evaluations=100, patience=100)
    assert patient.evaluations == 100  # control
    assert search(problem, problem.prior, evaluations=100, patience=5).evaluations == 6
    improving = hidden_loss(problem, 1, "pairs")
    losses = [e.loss for e in search(problem, improving, evaluations=100, patience=12).history]
    best = np.minimum.accumulate(losses)
    assert len(losses) < 100
    assert best[-13] == best[-1]
    assert all(best[i + 12] < best[i] for i in range(len(best) - 13))


@pytest.mark.parametrize("method", ["ziplm", "evolution"])
def test_other_methods_are_patient_unless_told_otherwise(method):
    problem = latency_problem(12, 3, seed=2)
    worse = iter(range(1000))
    assert search(problem, lambda levels: next(worse), evaluations=80, method=method).evaluations == 80
    assert search(problem, lambda x: next(worse), evaluations=80, method=method, patience=7).evaluations == 8


def test_patience_begins_with_the_first_finite_loss():
    calls = itertools.count(1)
    result = search(
        latency_problem(12, 3, seed=2),
        lambda levels: 1.0 if next(calls) > 40 else math.nan,
        evaluations=100,
        patience=10,
    )
    assert result.evaluations == 51

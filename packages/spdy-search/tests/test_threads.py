"""BLAS threads: one for our own small products, the user's number for the user's functions."""

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  # so that SciPy's BLAS is loaded, too
from spdy_problems import hidden_loss, latency_problem, two_budgets
from spdy_search import _model, _several, search, solve_batch
from spdy_search._threads import one_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    """The user's setting, whatever the environment of the tests says."""
    with threadpool_limits(limits=2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this BLAS does not have a variable number of threads")
        yield


def recorded(monkeypatch, module, name):
    """Record the number of threads at each call of a function."""
    seen = []
    function = getattr(module, name)

    def record(*arguments, **keywords):
        seen.append(blas_threads())
        return function(*arguments, **keywords)

    monkeypatch.setattr(module, name, record)
    return seen


def test_a_search_computes_on_one_thread_and_calls_the_loss_with_the_users_own(monkeypatch):
    inside = recorded(monkeypatch, _model, "_likelihood")
    problem = latency_problem(8, 2, seed=0)
    plain, loss_threads, other_threads = hidden_loss(problem, 1, "pairs"), [], []

    def loss(levels):
        loss_threads.append(blas_threads())
        return plain(levels)

    def screen(levels, fraction):
        other_threads.append(blas_threads())
        return plain(levels)

    def callback(progress):
        other_threads.append(blas_threads())

    search(problem, loss, evaluations=6, screen=screen, callback=callback)
    assert len(inside) > 10
    assert all(threads == {1} for threads in inside)
    assert loss_threads == [{2}] * 6
    assert len(other_threads) > 6
    assert all(threads == {2} for threads in other_threads)
    assert blas_threads() == {2}


def test_a_batch_under_several_budgets_is_solved_on_one_thread(monkeypatch):
    inside = recorded(monkeypatch, _several, "_best_priced_levels")
    solve_batch(two_budgets(), np.ones((3, 8)))
    assert inside == [{1}]
    assert blas_threads() == {2}


def test_the_limit_ends_after_an_error():
    with pytest.raises(RuntimeError), one_blas_thread():
        raise RuntimeError
    assert blas_threads() == {2}

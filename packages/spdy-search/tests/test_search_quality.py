"""How good the results of a search are, on losses that differ from the priors."""

import numpy as np
import pytest
from spdy_problems import hidden_loss, latency_problem
from spdy_search import search, solve

CASES = [(24, 2, 2), (24, 4, 1), (48, 2, 3), (48, 4, 0)]  # modules, speedup, seed


@pytest.mark.parametrize("kind", ["weights", "pairs", "curved", "saturating"])
def test_direct_with_100_evaluations_is_no_worse_than_ziplm_with_1000(kind):
    direct, fewer, no_model = [], [], []
    for modules, speedup, seed in CASES:
        problem = latency_problem(modules, speedup, seed)
        loss = hidden_loss(problem, seed, kind)
        paper = search(problem, loss, evaluations=1000, seed=seed, method="ziplm")
        assert paper.evaluations > 400
        direct.append(search(problem, loss, evaluations=100, seed=seed).loss / paper.loss)
        fewer.append(search(problem, loss, evaluations=100, seed=seed, method="ziplm").loss / paper.loss)
        no_model.append(
            search(problem, loss, evaluations=100, seed=seed, method="evolution").loss / paper.loss
        )
    assert np.mean(direct) <= 1
    assert np.mean(fewer) > 1  # controls: with 100 evaluations, methods that learn less are worse
    assert np.mean(no_model) > 1


def test_learning_does_not_spoil_good_priors():
    ratios = []
    for modules, speedup, seed in CASES:
        problem = latency_problem(modules, speedup, seed)
        factors = np.random.default_rng(seed).normal(1, 0.15, modules)
        best = problem.prior(solve(problem, factors), factors)
        found = search(problem, lambda levels, p=problem, f=factors: p.prior(levels, f), 30, seed=seed)
        ratios.append([found.history[0].loss / best, found.loss / best])
    first, last = np.mean(ratios, axis=0)
    assert first > 1.005  # control: the solution for the priors is not the optimum
    assert last <= 1 + 0.2 * (first - 1)


def test_control_the_solution_for_the_priors_is_worse_than_any_search():
    problem = latency_problem(24, 2, seed=0)
    loss = hidden_loss(problem, 0, "pairs")
    assert search(problem, loss, method="prior").loss > 1.1 * search(problem, loss, evaluations=60).loss
    assert search(problem, loss, method="prior").loss > 1.1 * search(problem, loss, 300, method="ziplm").loss

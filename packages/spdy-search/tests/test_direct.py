"""The parts of the default method: what it learns from evaluations, and how it walks downhill."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from spdy_problems import hidden_loss, latency_problem, small_problems
from spdy_search import InfeasibleBudget, Problem, solve, solve_batch
from spdy_search import _model as model
from spdy_search._descend import Hillside
from spdy_search._model import Harm, Settings, Terms, fit


def evaluated(problem, loss, count, seed=0):
    """Distinct assignments within budget and their losses, lowest first."""
    weights = np.random.default_rng(seed).lognormal(size=(2 * count, problem.modules))
    levels = np.unique(solve_batch(problem, weights), axis=0)
    levels = levels[np.random.default_rng(seed).permutation(len(levels))[:count]]
    losses = np.array([loss(row) for row in levels])
    order = losses.argsort()
    return levels[order], losses[order]


def explicit(terms: Terms):
    """One column for every θ, η and c, written out."""
    prior, bent, root = terms
    first, second = np.triu_indices(prior.shape[1], 1)
    return np.concatenate([prior, bent, root[:, first] * root[:, second]], axis=1)


@pytest.fixture
def learned(monkeypatch):
    """A posterior with all three kinds of unknowns, and the same by the textbook's formula for weights."""
    monkeypatch.setattr(model, "SMALLEST", -1e9)  # the bound from below has no closed form
    monkeypatch.setattr(model, "CHOICES", {})
    problem = latency_problem(6, 2, seed=5)
    tables, settings = Terms.of(problem), Settings(spread=0.7, bend=0.4, pairs=0.2, mistrust=0.05)
    levels, losses = evaluated(problem, hidden_loss(problem, 5, "curved"), 15)
    factors = np.random.default_rng(1).lognormal(0, 0.5, 6)
    posterior = fit(tables, levels, losses, settings, factors)
    columns = explicit(tables.at(levels).times(factors))
    pairs = columns.shape[1] - 12
    before = np.concatenate([1 - np.log(factors), np.zeros(6 + pairs)])
    variance = np.repeat(settings.variances, [6, 6, pairs])
    x = (columns - columns[0])[1:] / posterior.deviation[1:, None]
    y = posterior.rise[1:] / posterior.deviation[1:]
    covariance = np.linalg.inv(np.diag(1 / variance) + x.T @ x)
    mean = before + covariance @ x.T @ (y - x @ before)
    candidates = evaluated(problem, lambda row: 0.0, 20, seed=9)[0]
    change = explicit(tables.at(candidates).times(factors)) - columns[0]
    rise = change @ mean
    deviation = np.sqrt(np.einsum("ki,ij,kj->k", change, covariance, change))
    return posterior, candidates, rise, deviation


def test_the_posterior_is_that_of_bayesian_linear_regression(learned):
    posterior, candidates, rise, deviation = learned
    expected = rise * norm.cdf(-rise / deviation) * -1 + deviation * norm.pdf(rise / deviation)
    improvement, ours = posterior.improvement(candidates)
    np.testing.assert_allclose(ours, rise, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(improvement, expected, rtol=1e-3, atol=1e-5)


def test_draws_have_the_mean_and_deviation_of_the_posterior(learned):
    posterior, candidates, rise, deviation = learned
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(2000):
        totals = posterior.draw(rng).total(posterior.tables, np.array([posterior.levels[0], *candidates]))
        draws.append(totals[1:] - totals[0])
    error = np.abs(np.mean(draws, axis=0) - rise) / (deviation / math.sqrt(2000) + 1e-12)
    assert error[deviation > 1e-6].max() < 5
    np.testing.assert_allclose(np.std(draws, axis=0), deviation, rtol=0.1, atol=1e-6)


def prediction_error(tables, levels, losses, seen, settings):
    """Error of predictions for the assignments that were not seen, in units of how far these spread."""
    at = (
        fit(tables, levels[seen], losses[seen], settings, np.ones(len(tables.prior)))
        .mean()
        .total(tables, levels)
    )
    slope, offset = np.polyfit(at[seen], losses[seen], 1)  # the model has a unit and a zero of its own
    return float(np.std(slope * at[~seen] + offset - losses[~seen]) / losses[~seen].std())


def test_interactions_are_learned_from_fewer_evaluations_than_there_are_pairs(monkeypatch):
    problem = latency_problem(16, 2, seed=1)
    tables = Terms.of(problem)

    def error(seed, settings):
        truth = random_harm(tables, seed)
        levels, losses = evaluated(problem, lambda row: truth.total(tables, row[None])[0], 130, seed=1)
        seen = np.random.default_rng(2).permutation(len(levels)) < 100  # there are 120 pairs
        return prediction_error(tables, levels, losses, seen, settings)

    ours = np.mean([error(seed, Settings()) for seed in range(4)])
    assert ours < 0.1
    monkeypatch.setitem(model.CHOICES, "pairs", (0.0,))
    assert np.mean([error(seed, Settings(pairs=0.0)) for seed in range(4)]) > 1.5 * ours  # control


def test_evaluations_tell_good_priors_from_bad_ones():
    problem = latency_problem(16, 2, seed=1)
    near = np.random.default_rng(0).normal(1, 0.1, 16)
    far = np.random.default_rng(0).lognormal(0, 1, 16)
    spreads = []
    for factors in (near, far):
        levels, losses = evaluated(problem, lambda row, f=factors: problem.prior(row, f), 40)
        spreads.append(fit(Terms.of(problem), levels, losses, Settings(), np.ones(16)).settings.spread)
    assert spreads == [0.15, 1.0]


def test_factors_come_to_what_the_modules_matter():
    problem = latency_problem(16, 2, seed=1)
    truth = np.random.default_rng(0).lognormal(0, 0.7, 16)
    levels, losses = evaluated(problem, lambda row: problem.prior(row, truth), 60)
    factors, settings = np.ones(16), Settings()
    for _ in range(12):
        posterior = fit(Terms.of(problem), levels, losses, settings, factors)
        settings, factors = posterior.settings, posterior.next_factors()
    moved = np.ptp(Terms.of(problem).at(levels).prior, axis=0) > 0.01  # others cannot be known
    ratio = (factors / truth)[moved]
    assert moved.sum() > 8
    assert ratio.max() / ratio.min() < 1.2
    assert truth[moved].max() / truth[moved].min() > 5  # control


@pytest.mark.parametrize("losses", [[0.0], [1.0, 1.0], [-2.0, -1.0], [0.0, 1e-320], [-1e308, 1e308]])
def test_few_and_extreme_losses_are_no_trouble(losses):
    problem = latency_problem(6, 2, seed=5)
    levels = evaluated(problem, lambda row: 0.0, len(losses))[0]
    posterior = fit(Terms.of(problem), levels, np.array(losses), Settings(), np.ones(6))
    for harm in (posterior.mean(), posterior.draw(np.random.default_rng(0))):
        assert np.isfinite(harm.each).all()
        assert np.isfinite(harm.pairs).all()
        assert (harm.each >= model.SMALLEST * posterior.tables.prior - 1e-15).all()


def random_harm(tables: Terms, seed: int) -> Harm:
    rng = np.random.default_rng(seed)
    modules = len(tables.prior)
    half = np.triu(rng.normal(0, 0.3, (modules, modules)), 1)
    return Harm(rng.lognormal(size=(modules, 1)) * tables.prior, half + half.T)


@given(small_problems(kinds=2), st.integers(0, 10))
def test_a_walk_goes_down_within_budget_to_where_no_change_of_one_module_helps(parts, seed):
    costs, priors, budgets, _ = parts
    problem = Problem(dict(zip("ab", costs, strict=True)), priors, dict(zip("ab", budgets, strict=True)))
    try:
        start = solve(problem)
    except InfeasibleBudget:
        return
    tables = Terms.of(problem)
    harm = random_harm(tables, seed)
    way = [start, *Hillside(problem, tables).descend(harm, start)]
    assert all(problem.fits(levels) for levels in way)
    totals = harm.total(tables, np.array(way))
    assert (np.diff(totals) < 0).all()
    for module, useful in enumerate(problem.useful):
        for level in useful:
            changed = way[-1].copy()
            changed[module] = level
            room = problem.table.cost[:, np.arange(problem.modules), changed].sum(axis=1)
            if (room <= 1 - 1e-11).all():
                assert harm.total(tables, changed[None])[0] >= totals[-1] - 1e-9


def test_walks_end_near_the_optimum_where_it_is_known():
    problem = latency_problem(24, 2, seed=0)
    tables = Terms.of(problem)
    nothing = np.zeros((24, 24))
    hillside = Hillside(problem, tables)
    gaps, starts = [], []
    for seed in range(5):
        weights = np.random.default_rng(seed).lognormal(size=24)
        harm = Harm(weights[:, None] * tables.prior, nothing)
        end = hillside.descend(harm, solve(problem))[-1]
        optimum = problem.prior(solve(problem, weights), weights)
        gaps.append(problem.prior(end, weights) / optimum - 1)
        starts.append(problem.prior(solve(problem), weights) / optimum - 1)
    assert np.mean(gaps) < 0.02
    assert np.mean(starts) > 0.2  # control: there was something to descend

"""The parts of the default method: the model of the loss and the descents."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from spdy_problems import hidden_loss, latency_problem, small_problems
from spdy_search import InfeasibleBudget, Problem, _posterior, solve, solve_batch
from spdy_search import _model as model
from spdy_search._descend import Neighbourhood
from spdy_search._harm import SMALLEST, Harm, Terms
from spdy_search._model import fit
from spdy_search._posterior import Settings


def evaluated(problem, loss, count, seed=0):
    """Distinct assignments within budget and their losses, lowest loss first."""
    weights = np.random.default_rng(seed).lognormal(size=(2 * count, problem.modules))
    levels = np.unique(solve_batch(problem, weights), axis=0)
    levels = levels[np.random.default_rng(seed).permutation(len(levels))[:count]]
    losses = np.array([loss(row) for row in levels])
    order = losses.argsort()
    return levels[order], losses[order]


def design_matrix(terms: Terms):
    """The design matrix: one column for every θ, η and c."""
    prior, log_term, root = terms
    first, second = np.triu_indices(prior.shape[1], 1)
    return np.concatenate([prior, log_term, root[:, first] * root[:, second]], axis=1)


@pytest.fixture
def learned(monkeypatch):
    """A posterior with all three kinds of unknowns, and the textbook formula for its mean and deviation."""
    monkeypatch.setattr(_posterior, "SMALLEST", -1e9)  # the textbook formula has no lower bound
    monkeypatch.setattr(model, "CHOICES", {})
    problem = latency_problem(6, 2, seed=5)
    tables, settings = Terms.of(problem), Settings(spread=0.7, curvature=0.4, interaction=0.2, misfit=0.05)
    levels, losses = evaluated(problem, hidden_loss(problem, 5, "curved"), 15)
    factors = np.random.default_rng(1).lognormal(0, 0.5, 6)
    posterior = fit(tables, levels, losses, settings, factors)
    columns = design_matrix(tables.at(levels).scaled_by(factors))
    pairs = columns.shape[1] - 12
    before = np.concatenate([1 - np.log(factors), np.zeros(6 + pairs)])
    variance = np.repeat(settings.variances, [6, 6, pairs])
    x = (columns - columns[0])[1:] / posterior.deviation[1:, None]
    y = posterior.rise[1:] / posterior.deviation[1:]
    covariance = np.linalg.inv(np.diag(1 / variance) + x.T @ x)
    mean = before + covariance @ x.T @ (y - x @ before)
    candidates = evaluated(problem, lambda row: 0.0, 20, seed=9)[0]
    change = design_matrix(tables.at(candidates).scaled_by(factors)) - columns[0]
    rise = change @ mean
    deviation = np.sqrt(np.einsum("ki,ij,kj->k", change, covariance, change))
    return posterior, candidates, rise, deviation


def test_the_posterior_equals_bayesian_linear_regression(learned):
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
    """Error of the predicted losses of unseen assignments, relative to their standard deviation."""
    at = (
        fit(tables, levels[seen], losses[seen], settings, np.ones(len(tables.prior)))
        .mean()
        .total(tables, levels)
    )
    slope, offset = np.polyfit(at[seen], losses[seen], 1)  # the model predicts up to a factor and a constant
    return float(np.std(slope * at[~seen] + offset - losses[~seen]) / losses[~seen].std())


def test_interactions_are_learned_from_fewer_evaluations_than_pairs(monkeypatch):
    problem = latency_problem(16, 2, seed=1)
    tables = Terms.of(problem)

    def error(seed, settings):
        truth = random_harm(tables, seed)
        levels, losses = evaluated(problem, lambda row: truth.total(tables, row[None])[0], 130, seed=1)
        seen = np.random.default_rng(2).permutation(len(levels)) < 100  # there are 120 pairs
        return prediction_error(tables, levels, losses, seen, settings)

    ours = np.mean([error(seed, Settings()) for seed in range(4)])
    assert ours < 0.1
    monkeypatch.setitem(model.CHOICES, "interaction", (0.0,))
    assert np.mean([error(seed, Settings(interaction=0.0)) for seed in range(4)]) > 1.5 * ours  # control


def test_the_likeliest_spread_tells_good_priors_from_bad_ones():
    problem = latency_problem(16, 2, seed=1)
    near = np.random.default_rng(0).normal(1, 0.1, 16)
    far = np.random.default_rng(0).lognormal(0, 1, 16)
    spreads = []
    for factors in (near, far):
        levels, losses = evaluated(problem, lambda row, f=factors: problem.prior(row, f), 40)
        spreads.append(fit(Terms.of(problem), levels, losses, Settings(), np.ones(16)).settings.spread)
    assert spreads == [0.15, 1.0]


def test_factors_converge_to_the_importance_of_the_modules():
    problem = latency_problem(16, 2, seed=1)
    truth = np.random.default_rng(0).lognormal(0, 0.7, 16)
    levels, losses = evaluated(problem, lambda row: problem.prior(row, truth), 60)
    factors, settings = np.ones(16), Settings()
    for _ in range(12):
        posterior = fit(Terms.of(problem), levels, losses, settings, factors)
        settings, factors = posterior.settings, posterior.next_factors()
    moved = (
        np.ptp(Terms.of(problem).at(levels).prior, axis=0) > 0.01
    )  # the others have no effect on the losses
    ratio = (factors / truth)[moved]
    assert moved.sum() > 8
    assert ratio.max() / ratio.min() < 1.2
    assert truth[moved].max() / truth[moved].min() > 5  # control


@pytest.mark.parametrize("losses", [[0.0], [1.0, 1.0], [-2.0, -1.0], [0.0, 1e-320], [-1e308, 1e308]])
def test_few_or_extreme_losses_give_finite_harms(losses):
    problem = latency_problem(6, 2, seed=5)
    levels = evaluated(problem, lambda row: 0.0, len(losses))[0]
    posterior = fit(Terms.of(problem), levels, np.array(losses), Settings(), np.ones(6))
    for harm in (posterior.mean(), posterior.draw(np.random.default_rng(0))):
        assert np.isfinite(harm.alone).all()
        assert np.isfinite(harm.interaction).all()
        assert (harm.alone >= SMALLEST * posterior.tables.prior - 1e-15).all()


def random_harm(tables: Terms, seed: int) -> Harm:
    rng = np.random.default_rng(seed)
    modules = len(tables.prior)
    half = np.triu(rng.normal(0, 0.3, (modules, modules)), 1)
    return Harm(rng.lognormal(size=(modules, 1)) * tables.prior, half + half.T)


@given(small_problems(kinds=2), st.integers(0, 10))
def test_a_descent_stays_within_budget_and_ends_where_no_single_change_helps(parts, seed):
    costs, priors, budgets, _ = parts
    problem = Problem(dict(zip("ab", costs, strict=True)), priors, dict(zip("ab", budgets, strict=True)))
    try:
        start = solve(problem)
    except InfeasibleBudget:
        return
    tables = Terms.of(problem)
    harm = random_harm(tables, seed)
    path = [start, *Neighbourhood(problem, tables).descend(harm, start)]
    assert all(problem.fits(levels) for levels in path)
    totals = harm.total(tables, np.array(path))
    assert (np.diff(totals) < 0).all()
    for module, useful in enumerate(problem.useful):
        for level in useful:
            changed = path[-1].copy()
            changed[module] = level
            spent = problem.table.cost[:, np.arange(problem.modules), changed].sum(axis=1)
            if (spent <= 1 - 1e-11).all():
                assert harm.total(tables, changed[None])[0] >= totals[-1] - 1e-9


def test_descents_end_near_the_optimum_of_a_harm_without_interactions():
    problem = latency_problem(24, 2, seed=0)
    tables = Terms.of(problem)
    no_interaction = np.zeros((24, 24))
    neighbourhood = Neighbourhood(problem, tables)
    gaps, starts = [], []
    for seed in range(5):
        weights = np.random.default_rng(seed).lognormal(size=24)
        harm = Harm(weights[:, None] * tables.prior, no_interaction)
        end = neighbourhood.descend(harm, solve(problem))[-1]
        optimum = problem.prior(solve(problem, weights), weights)
        gaps.append(problem.prior(end, weights) / optimum - 1)
        starts.append(problem.prior(solve(problem), weights) / optimum - 1)
    assert np.mean(gaps) < 0.02
    assert np.mean(starts) > 0.2  # control: the starts are far from the optimum

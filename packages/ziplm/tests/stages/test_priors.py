"""Priors equal their definitions, computed on shrunk models."""

from typing import Any

import pytest
import torch
from obs_structured import Trace
from ziplm.architectures.base import Branch
from ziplm.stages.priors import exact_priors, prior_names_for
from ziplm_calibrated import TASK, Calibrated
from ziplm_choices import BRANCHES
from ziplm_models import HIDDEN
from ziplm_pipeline import (
    ARCHITECTURES,
    assert_same_parameters,
    hooked,
    one_by_one,
    parameters_of,
)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def calibrated(request: pytest.FixtureRequest) -> Calibrated:
    return Calibrated(request.param)


def some_counts(branch: Branch) -> list[int]:
    return sorted({0, 1, branch.groups // 2, branch.groups - 1, branch.groups})


@pytest.mark.parametrize("place", [0, 1, 4, 5])
@pytest.mark.parametrize("centred", [True, False])
def test_priors_equal_their_definitions_on_the_shrunk_model(
    calibrated: Calibrated, place: int, centred: bool
) -> None:
    branch = calibrated.branches[place]
    inputs, gamma = calibrated.inputs[branch.name], calibrated.fisher.gamma[branch.name]
    before = parameters_of(calibrated.model)
    trace, priors = calibrated.pruned(branch, centred=centred)
    assert_same_parameters(calibrated.model, before)
    assert set(priors) == {"factored", "scalar", "stream", "own"}
    half, mean = inputs.moments.hessian / 2, inputs.moments.mean
    covariance = half - mean.outer(mean) if centred else half
    weight = calibrated.architecture.weight(calibrated.model, branch).detach().double()
    norm = calibrated.architecture.norm_after(calibrated.model, branch)
    scale = torch.ones(HIDDEN) if norm is None else norm.weight.detach()
    for k in some_counts(branch):
        change, shift = calibrated.change(branch, trace, k)
        torch.testing.assert_close(shift, -change @ mean * centred, rtol=1e-3, atol=1e-5)
        error = change @ covariance @ change.T  # (hidden, hidden): second moment of the error of the output
        normed = (error - error.mean(0)) - (error - error.mean(0)).mean(
            1, keepdim=True
        )  # a norm removes the mean over outputs
        expected = {
            "factored": torch.trace(gamma @ error),
            "scalar": gamma.diagonal().mean() * torch.trace(error),
            "stream": inputs.inverse_variance
            * (scale.double().square() * normed.diagonal()).sum()
            / inputs.spread,
            "own": (torch.trace(error) / torch.trace(weight @ half @ weight.T)).sqrt(),
        }
        for name, value in expected.items():
            largest = float(priors[name].max())
            assert float(priors[name][k]) == pytest.approx(float(value), rel=1e-3, abs=1e-5 * largest), name
    for name, prior in priors.items():
        assert prior.shape == (branch.groups + 1,)
        assert prior.dtype == torch.float64
        assert prior[0] == 0, name
        assert prior[-1] > 0, name


def slopes(calibrated: Calibrated, branch: Branch, trace: Trace, removed: int) -> torch.Tensor:
    """Return the slope of each sample's score along the way from dense to pruned branch, (samples,)."""
    change, shift = (value.float() for value in calibrated.change(branch, trace, removed))
    found = []
    for _, batch in one_by_one(calibrated.others):
        share = torch.zeros((), requires_grad=True)

        def move(_: Any, given: Any, output: torch.Tensor, share: torch.Tensor = share) -> torch.Tensor:
            return output + share * (given[0] @ change.T + shift)

        with hooked(calibrated.architecture.output_layer(calibrated.model, branch), move):
            score = TASK.head.score(calibrated.model, TASK.head.outputs(calibrated.model, batch), batch, None)  # type: ignore[arg-type]
        found.append(torch.autograd.grad(score, share)[0])
    return torch.stack(found).double()


@pytest.mark.parametrize("centred", [True, False])
def test_the_exact_prior_adds_up_the_errors_of_a_samples_tokens(
    calibrated: Calibrated, centred: bool
) -> None:
    traces = {b.name: calibrated.pruned(b, centred=centred)[0] for b in calibrated.branches}
    found = [
        exact_priors(
            calibrated.model, TASK, calibrated.others, calibrated.branches, traces, batch_size=batch_size
        )
        for batch_size in (1, 4, 50)
    ]
    assert list(found[0]) == [branch.name for branch in calibrated.branches]
    for branch in (calibrated.branches[1], calibrated.branches[4]):
        for k in (0, 1, branch.groups // 2, branch.groups):
            expected = slopes(calibrated, branch, traces[branch.name], k).square().mean()
            for exact in found:
                prior = exact[branch.name]
                assert prior.shape == (branch.groups + 1,)
                largest = float(prior.max())
                assert float(prior[k]) == pytest.approx(float(expected), rel=1e-3, abs=1e-5 * largest)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("own", "stream"), ["stream"]),
        (("own", "stream", "scalar", "factored"), ["factored", "scalar", "stream"]),
        (("stream", "exact", "factored"), ["exact", "factored", "stream"]),
    ],
)
def test_the_priors_to_try_are_those_that_all_branches_have(
    names: tuple[str, ...], expected: list[str]
) -> None:
    priors = {branch.name: dict.fromkeys(names, torch.zeros(2)) for branch in BRANCHES}
    assert prior_names_for(priors) == expected
    priors[BRANCHES[0].name].pop(expected[0])
    assert expected[0] not in prior_names_for(priors)

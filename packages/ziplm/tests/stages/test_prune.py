"""Priors of levels are what they say, computed from shrunk models, and orders depend on the metric."""

from typing import Any

import pytest
import torch
from obs_structured import Trace
from transformers import PreTrainedModel
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm import shrink
from ziplm.stages.inputs import BranchInputs
from ziplm.stages.calibrate import gather_fisher, gather_inputs
from ziplm.stages.fisher import Fisher
from ziplm.stages.choices import Priors
from ziplm.stages.priors import exact_priors
from ziplm.stages.prune import prune_branch
from ziplm_models import HIDDEN
from ziplm_pipeline import (
    ARCHITECTURES,
    KnownScore,
    MadeUpTask,
    assert_same_parameters,
    hooked,
    lively_model,
    one_by_one,
    parameters_of,
    samples,
)

TASK = MadeUpTask(KnownScore())


class Calibrated:
    """A tiny model with everything that pruning needs, gathered from a few samples."""

    def __init__(self, name: str) -> None:
        self.model = lively_model(name)
        self.adapter = architecture_of(self.model)
        self.features = samples(name, 30)
        self.others = samples(name, 6, seed=5)
        self.modules = self.adapter.modules(self.model)
        self.metric = gather_fisher(self.model, TASK, self.features)
        self.weights = {m.name: self.metric.token_weights(m.name, 1)[0] for m in self.modules}
        self.inputs = gather_inputs(self.model, TASK, self.features, self.modules, self.weights)

    def pruned(self, module: Branch, **options: Any) -> tuple[Trace, Priors]:
        given = {"metric": self.metric, "effective_tokens": 100, **options}
        return prune_branch(self.model, module, self.inputs[module.name], **given)

    def change(self, module: Branch, trace: Trace, removed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ΔW (hidden, columns) and Δb (hidden,), read off the shrunk model, float64."""
        small = shrunk(self.model, module, trace, removed)
        dense = self.adapter.weight(self.model, module).detach().double()
        left = torch.zeros_like(dense)
        if removed < module.groups:
            own = self.adapter.modules(small)[self.modules.index(module)]
            left[:, trace.columns(removed)] = self.adapter.weight(small, own).detach().double()
        shift = self.adapter.bias(small, module) - self.adapter.bias(self.model, module)
        return left - dense, shift.detach().double()


def shrunk(model: PreTrainedModel, module: Branch, trace: Trace, removed: int) -> PreTrainedModel:
    modules = architecture_of(model).modules(model)
    levels = [removed if own == module else 0 for own in modules]
    return shrink(model, levels, [trace if own == module else None for own in modules])


@pytest.fixture(params=ARCHITECTURES, scope="module")
def calibrated(request: pytest.FixtureRequest) -> Calibrated:
    return Calibrated(request.param)


def some_levels(module: Branch) -> list[int]:
    return sorted({0, 1, module.groups // 2, module.groups - 1, module.groups})


@pytest.mark.parametrize("place", [0, 1, 4, 5])
@pytest.mark.parametrize("centred", [True, False])
def test_priors_by_definition(calibrated: Calibrated, place: int, centred: bool) -> None:
    module = calibrated.modules[place]
    inputs, gamma = calibrated.inputs[module.name], calibrated.metric.gamma[module.name]
    before = parameters_of(calibrated.model)
    trace, priors = calibrated.pruned(module, centred=centred)
    assert_same_parameters(calibrated.model, before)
    assert set(priors) == {"factored", "scalar", "stream", "own"}
    half, mean = inputs.moments.hessian / 2, inputs.moments.mean
    covariance = half - mean.outer(mean) if centred else half
    weight = calibrated.adapter.weight(calibrated.model, module).detach().double()
    norm = calibrated.adapter.norm_after(calibrated.model, module)
    scale = torch.ones(HIDDEN) if norm is None else norm.weight.detach()
    for k in some_levels(module):
        change, shift = calibrated.change(module, trace, k)
        torch.testing.assert_close(shift, -change @ mean * centred, rtol=1e-3, atol=1e-5)
        error = change @ covariance @ change.T  # (hidden, hidden): second moment of what the output loses
        seen = (error - error.mean(0)) - (error - error.mean(0)).mean(1, keepdim=True)  # by a norm
        expected = {
            "factored": torch.trace(gamma @ error),
            "scalar": gamma.diagonal().mean() * torch.trace(error),
            "stream": inputs.inverse_variance
            * (scale.double().square() * seen.diagonal()).sum()
            / inputs.spread,
            "own": (torch.trace(error) / torch.trace(weight @ half @ weight.T)).sqrt(),
        }
        for name, value in expected.items():
            largest = float(priors[name].max())
            assert float(priors[name][k]) == pytest.approx(float(value), rel=1e-3, abs=1e-5 * largest), name
    for name, prior in priors.items():
        assert prior.shape == (module.groups + 1,)
        assert prior.dtype == torch.float64
        assert prior[0] == 0, name
        assert prior[-1] > 0, name


def slopes(calibrated: Calibrated, module: Branch, trace: Trace, removed: int) -> torch.Tensor:
    """How each sample's score begins to move on the way from dense module to pruned one, (samples,)."""
    change, shift = (value.float() for value in calibrated.change(module, trace, removed))
    found = []
    for _, batch in one_by_one(calibrated.others):
        share = torch.zeros((), requires_grad=True)

        def move(_: Any, given: Any, output: torch.Tensor, share: torch.Tensor = share) -> torch.Tensor:
            return output + share * (given[0] @ change.T + shift)

        with hooked(calibrated.adapter.output_layer(calibrated.model, module), move):
            score = TASK.head.score(calibrated.model, TASK.head.outputs(calibrated.model, batch), batch, None)  # type: ignore[arg-type]
        found.append(torch.autograd.grad(score, share)[0])
    return torch.stack(found).double()


@pytest.mark.parametrize("centred", [True, False])
def test_the_exact_prior_adds_up_what_tokens_of_a_sample_lose(calibrated: Calibrated, centred: bool) -> None:
    traces = {m.name: calibrated.pruned(m, centred=centred)[0] for m in calibrated.modules}
    found = [
        exact_priors(
            calibrated.model, TASK, calibrated.others, calibrated.modules, traces, batch_size=batch_size
        )
        for batch_size in (1, 4, 50)
    ]
    assert list(found[0]) == [module.name for module in calibrated.modules]
    for module in (calibrated.modules[1], calibrated.modules[4]):
        for k in (0, 1, module.groups // 2, module.groups):
            expected = slopes(calibrated, module, traces[module.name], k).square().mean()
            for exact in found:
                prior = exact[module.name]
                assert prior.shape == (module.groups + 1,)
                largest = float(prior.max())
                assert float(prior[k]) == pytest.approx(float(expected), rel=1e-3, abs=1e-5 * largest)


def test_another_metric_gives_another_order_and_other_priors(calibrated: Calibrated) -> None:
    module = calibrated.modules[1]
    first, felt = calibrated.pruned(module)
    narrow = torch.zeros(HIDDEN, HIDDEN, dtype=torch.float64)
    narrow[2, 2] = 1  # only one output matters
    other = Fisher({module.name: narrow}, calibrated.metric.squares)
    second, narrow_priors = calibrated.pruned(module, metric=other)
    plain, no_metric = calibrated.pruned(module, metric=None)
    assert set(no_metric) == {"stream", "own"}
    orders = [trace.order.tolist() for trace in (first, second, plain)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert not torch.allclose(felt["factored"], narrow_priors["factored"])
    half = module.groups // 2
    # Each is ahead of the other in what it was chosen by.
    assert second.errors_under(narrow)[half] < first.errors_under(narrow)[half]
    own = calibrated.metric.selection(module.name)
    assert first.errors_under(own)[half] < second.errors_under(own)[half]


def test_weights_of_tokens_show_in_the_order(calibrated: Calibrated) -> None:
    module = calibrated.modules[1]
    even = gather_inputs(calibrated.model, TASK, calibrated.features, [module], {})[module.name]
    weighted = calibrated.inputs[module.name]
    assert isinstance(even, Inputs)
    orders = [
        prune_branch(calibrated.model, module, inputs, None, 100)[0].order.tolist()
        for inputs in (even, weighted)
    ]
    assert orders[0] != orders[1]


def test_baselines_and_damping_are_handed_on(calibrated: Calibrated) -> None:
    module = calibrated.modules[1]
    kept, _ = calibrated.pruned(module, metric=None, method="magnitude", update=False, damping=0.5)
    weight = calibrated.adapter.weight(calibrated.model, module).detach()
    assert kept.order.tolist() == weight.double().square().sum(0).argsort().tolist()
    assert torch.equal(kept.weight(3), weight[:, kept.columns(3)])
    assert kept.damping == 0.5
    few, many = (calibrated.pruned(module, effective_tokens=n)[0].damping for n in (10, 10**6))
    assert few >= many

"""Refit solves the least-squares problem of each branch in order, and does not change its arguments."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from ziplm import shrink
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.refit import refit
from ziplm_models import PATTERNS, removed_by
from ziplm_pipeline import (
    ARCHITECTURES,
    CLASSIFIER,
    DECODER,
    assert_same_parameters,
    hooked,
    lively_model,
    named_traces,
    one_by_one,
    parameters_of,
    samples,
    task_for,
)

Weights = Mapping[str, torch.Tensor | None]


def double_model(name: str) -> PreTrainedModel:
    """Return a model in float64, so that differences are not due to rounding."""
    return lively_model(name).double()


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    traces = named_traces(model)
    branches = architecture_of(model).branches(model)
    return shrink(model, removed_by(model, pattern), [traces[branch.name] for branch in branches])


def stream_before(model: PreTrainedModel, branch: Branch) -> tuple[torch.nn.Module, int]:
    """Return the module that gets the stream before a branch as an argument, and the argument's place."""
    layer: Any = architecture_of(model).layers(model)[branch.layer]
    attention = branch.part == "attention"
    if hasattr(layer, "ln_1"):
        return (layer.ln_1 if attention else layer.ln_2), 0
    if hasattr(layer, "input_layernorm"):
        return (layer.input_layernorm if attention else layer.post_attention_layernorm), 0
    return (layer.attention.output if attention else layer.output), 1  # (hidden_states, input_tensor)


Seen = dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def seen_by(model: PreTrainedModel, features: Sequence[Any]) -> Seen:
    """Return inputs of the output matrices, streams before, and outputs, (tokens, …), in the tasks' order."""
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    found: dict[str, tuple[list[torch.Tensor], ...]] = {branch.name: ([], [], []) for branch in branches}

    def keep_stream(name: str, argument: int) -> Callable[..., None]:
        return lambda _, given: found[name][1].append(given[argument][0].clone())

    def keep(name: str) -> Callable[..., None]:
        def add(_: Any, given: Any, output: torch.Tensor) -> None:
            found[name][0].append(given[0][0].clone())
            found[name][2].append(output[0].clone())

        return add

    with torch.no_grad(), ExitStack() as stack:
        for branch in branches:
            module, argument = stream_before(model, branch)
            stack.enter_context(hooked(module, keep_stream(branch.name, argument), before=True))
            stack.enter_context(hooked(architecture.output_layer(model, branch), keep(branch.name)))
        for _, batch in one_by_one(features):
            model(**batch)
    return {name: tuple(torch.cat(part).double() for part in parts) for name, parts in found.items()}  # type: ignore[misc]


def wanted_from(
    dense: PreTrainedModel, small: PreTrainedModel, features: Sequence[Any]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the inputs (tokens, columns) of each branch of a model, and the outputs it should have."""
    goals = {name: before + output for name, (_, before, output) in seen_by(dense, features).items()}
    return {
        name: (inputs, goals[name] - before) for name, (inputs, before, _) in seen_by(small, features).items()
    }


def token_weights(name: str, features: Sequence[Any], branches: Sequence[Branch]) -> Weights:
    tokens = sum(len(sample["input_ids"]) for sample in features)
    return {
        branch.name: torch.rand(tokens, generator=torch.Generator().manual_seed(place)) ** 3 + 0.01
        for place, branch in enumerate(branches)
    }


def solved_by_hand(
    inputs: torch.Tensor,
    goal: torch.Tensor,
    w: torch.Tensor,
    start: torch.Tensor,
    damping: float,
    biased: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve for W and b by numpy's lstsq on rows √w (x − mean), and rows √λ for the pull towards `start`.

    Without a bias, nothing is subtracted.
    """
    share = w / w.sum()
    mean, goal_mean = biased * (share @ inputs), biased * (share @ goal)
    x, y = share.sqrt()[:, None] * (inputs - mean), share.sqrt()[:, None] * (goal - goal_mean)
    root = (damping * x.square().sum(0).mean()).sqrt() * torch.eye(x.shape[1], dtype=torch.float64)
    rows, targets = torch.cat([x, root]), torch.cat([y, root @ start.T])
    weight = torch.from_numpy(np.linalg.lstsq(rows.numpy(), targets.numpy(), rcond=None)[0].T)
    return weight, goal_mean - weight @ mean


@pytest.mark.parametrize("name", [*ARCHITECTURES, "LlamaForCausalLM"])
@pytest.mark.parametrize("pattern", ["heads and columns", "first attention", "a whole layer"])
@pytest.mark.parametrize("weighted", [True, False])
def test_each_branch_is_solved_after_those_before_it(name: str, pattern: str, weighted: bool) -> None:
    """Every matrix of the result solves the least-squares problem posed by the result's own inputs."""
    dense, features, task = double_model(name), samples(name, 16), task_for(name)
    small = shrunk(dense, pattern)
    architecture = architecture_of(dense)
    branches = architecture.branches(small)
    weights: Weights = token_weights(name, features, branches) if weighted else {}
    before, dense_before = parameters_of(small), parameters_of(dense)
    done: list[tuple[int, int]] = []
    fitted = refit(
        dense, small, task, features, weights, batch_size=5, progress=lambda *now: done.append(now)
    )
    assert_same_parameters(small, before)
    assert_same_parameters(dense, dense_before)
    assert done == [(1, 3), (2, 3), (3, 3)]
    moved = []
    wanted = wanted_from(dense, fitted, features)
    for branch in branches:
        inputs, goal = wanted[branch.name]
        own = weights.get(branch.name)
        w = torch.ones(len(goal), dtype=torch.float64) if own is None else own.double()
        bias = architecture.bias(fitted, branch)
        if not branch.groups:
            if bias is not None:
                torch.testing.assert_close(bias, w @ goal / w.sum(), rtol=1e-6, atol=1e-7)
            continue
        start = architecture.weight(small, branch).detach().double()
        weight, expected_bias = solved_by_hand(inputs, goal, w, start, 0.01, bias is not None)
        torch.testing.assert_close(architecture.weight(fitted, branch).double(), weight, rtol=1e-6, atol=1e-7)
        if bias is not None:
            torch.testing.assert_close(bias, expected_bias, rtol=1e-6, atol=1e-7)
        moved.append(float((weight - start).abs().max()))
    assert max(moved) > 0.1  # control: the weights did change


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_damping_no_branch_has_a_larger_error_on_its_own_samples(name: str) -> None:
    dense, features, task = double_model(name), samples(name, 24), task_for(name)
    small = shrunk(dense, "heads and columns")
    architecture = architecture_of(dense)
    weights = token_weights(name, features, architecture.branches(small))
    fitted = refit(dense, small, task, features, weights, damping=1e-9)
    better = 0
    wanted = wanted_from(dense, fitted, features)
    for branch in architecture.branches(fitted):
        inputs, goal = wanted[branch.name]
        w = weights[branch.name]
        assert w is not None
        errors = []
        for model in (small, fitted):
            outputs = (
                inputs @ architecture.weight(model, branch).detach().T
                + architecture.bias(model, branch).detach()
            )
            errors.append(float(w.double() @ (outputs - goal).square().sum(-1)))
        assert errors[1] <= errors[0] * (1 + 1e-6)
        better += errors[1] < 0.9 * errors[0]
    assert better >= 4


def test_strong_damping_keeps_the_weights_and_fits_the_bias() -> None:
    dense, features = double_model(CLASSIFIER), samples(CLASSIFIER, 10)
    small = shrunk(dense, "some columns")
    architecture = architecture_of(dense)
    branch = architecture.branches(small)[1]
    fitted = refit(dense, small, task_for(CLASSIFIER), features, {}, damping=1e9)
    torch.testing.assert_close(
        architecture.weight(fitted, branch), architecture.weight(small, branch), rtol=1e-4, atol=1e-5
    )
    inputs, goal = wanted_from(dense, fitted, features)[branch.name]
    expected = (goal - inputs @ architecture.weight(fitted, branch).double().T).mean(0)
    torch.testing.assert_close(architecture.bias(fitted, branch).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_can_be_refitted_and_then_trained(name: str, pattern: str) -> None:
    dense, features = lively_model(name), samples(name, 6)
    fitted = refit(dense, shrunk(dense, pattern), task_for(name), features, {})
    assert not any(parameter.is_inference() for parameter in fitted.parameters())
    assert all(parameter.requires_grad for parameter in fitted.parameters())
    fitted.train()(**task_for(name).collate(features)).loss.backward()
    assert not any(module._forward_hooks for model in (dense, fitted) for module in model.modules())
    assert all("forward" not in layer.__dict__ for layer in architecture_of(dense).layers(dense))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_refit_model_shares_everything_but_its_output_matrices(name: str) -> None:
    dense, features = double_model(name), samples(name, 6)
    small = shrunk(dense, "heads and columns")
    fitted = refit(dense, small, task_for(name), features, {})
    before = {parameter.data_ptr() for parameter in small.parameters()}
    new = [parameter for parameter in fitted.parameters() if parameter.data_ptr() not in before]
    architecture = architecture_of(fitted)
    own = [architecture.output_layer(fitted, branch) for branch in architecture.branches(fitted)]
    assert {id(p) for p in new} == {id(p) for layer in own for p in layer.parameters()}


def test_refitting_an_unpruned_model_changes_nothing() -> None:
    """The model's own stream is the goal, so the matrices stay the same up to rounding."""
    dense, features = double_model(DECODER), samples(DECODER, 40)
    small = shrunk(dense, "nothing")
    fitted = refit(dense, small, task_for(DECODER), features, {})
    for (key, after), before in zip(fitted.named_parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7, msg=key)


def test_the_result_depends_on_the_samples_used_and_not_on_the_batch_size() -> None:
    dense, features, task = double_model(CLASSIFIER), samples(CLASSIFIER, 12), task_for(CLASSIFIER)
    small = shrunk(dense, "heads and columns")
    weights = token_weights(CLASSIFIER, features, architecture_of(small).branches(small))
    whole, apart = (refit(dense, small, task, features, weights, batch_size=n) for n in (12, 1))
    for one, other in zip(whole.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    # With half the samples, every second batch is used, as if the others did not exist.
    half = refit(dense, small, task, features, weights, batch_size=1, most_samples=6)
    order = [index for index, _ in one_by_one(features)]
    starts = np.cumsum([0, *(len(features[index]["input_ids"]) for index in order)])
    kept = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in range(0, 12, 2)])
    own = {key: None if value is None else value[kept] for key, value in weights.items()}
    alone = refit(dense, small, task, [features[order[n]] for n in range(0, 12, 2)], own, batch_size=1)
    for one, other in zip(half.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_with_constant_inputs_the_matrix_stays_and_the_bias_is_fitted() -> None:
    """Constant columns have no variance from which a matrix could be solved."""
    dense, features = double_model(CLASSIFIER), samples(CLASSIFIER, 8)
    small = shrunk(dense, "nothing")
    architecture = architecture_of(dense)
    layer: Any = architecture.layers(small)[2]
    with torch.no_grad():
        layer.intermediate.dense.weight = torch.nn.Parameter(
            torch.zeros_like(layer.intermediate.dense.weight)
        )
    branch = architecture.branches(small)[5]
    fitted = refit(dense, small, task_for(CLASSIFIER), features, {})
    torch.testing.assert_close(
        architecture.weight(fitted, branch), architecture.weight(small, branch), rtol=1e-3, atol=1e-3
    )
    inputs, goal = wanted_from(dense, fitted, features)[branch.name]
    expected = (goal - inputs @ architecture.weight(fitted, branch).double().T).mean(0)
    torch.testing.assert_close(architecture.bias(fitted, branch).double(), expected, rtol=1e-3, atol=1e-3)

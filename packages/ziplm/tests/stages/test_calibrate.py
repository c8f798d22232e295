"""Fisher and inputs equal those computed sample by sample; padding and batch size have no effect."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from obs_structured import Moments
from transformers import PreTrainedModel
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.statistics import BranchStatistics
from ziplm_models import HEADS, HIDDEN
from ziplm_pipeline import (
    ARCHITECTURES,
    CLASSIFIER,
    DECODER,
    KnownScore,
    MadeUpTask,
    hooked,
    lively_model,
    one_by_one,
    samples,
    task_for,
)


def branches_of(model: PreTrainedModel) -> list[Branch]:
    return architecture_of(model).branches(model)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> PreTrainedModel:
    return lively_model(name, attn_pdrop=0.1) if name == DECODER else lively_model(name)


def by_hand(
    model: PreTrainedModel, features: list[dict[str, Any]]
) -> tuple[dict[str, list[torch.Tensor]], dict[str, list[torch.Tensor]]]:
    """Return inputs and gradients of all branches, sample by sample without padding, (tokens, …) each."""
    inputs: dict[str, list[torch.Tensor]] = {branch.name: [] for branch in branches_of(model)}
    gradients: dict[str, list[torch.Tensor]] = {branch.name: [] for branch in branches_of(model)}
    head = KnownScore()
    kept: dict[str, torch.Tensor] = {}

    def watch(own: str) -> Callable[..., None]:
        def keep(_: Any, given: Any, output: torch.Tensor) -> None:
            inputs[own].append(given[0].detach()[0])
            kept[own] = output

        return keep

    with ExitStack() as stack:
        for branch in branches_of(model):
            layer = architecture_of(model).output_layer(model, branch)
            stack.enter_context(hooked(layer, watch(branch.name)))
        for _, batch in one_by_one(features):
            score = head.scores(head.outputs(model, batch), batch).sum()
            for own, gradient in zip(kept, torch.autograd.grad(score, list(kept.values())), strict=True):
                gradients[own].append(gradient[0])
    return inputs, gradients


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_the_fisher_is_the_second_moment_of_the_gradients(
    name: str, model: PreTrainedModel, batch_size: int
) -> None:
    features = samples(name, 8)
    done: list[tuple[int, int]] = []
    fisher = gather_fisher(
        model,
        MadeUpTask(KnownScore()),
        features,
        batch_size=batch_size,
        progress=lambda *now: done.append(now),
    )
    assert done[-1] == (8, 8)
    _, gradients = by_hand(model, features)
    for branch in branches_of(model):
        g = torch.cat(gradients[branch.name])
        scale = float(g.square().mean())
        torch.testing.assert_close(
            fisher.gamma[branch.name], (g.T @ g / len(g)).double(), rtol=1e-4, atol=1e-4 * scale
        )
        torch.testing.assert_close(
            fisher.squares[branch.name], g.square().sum(-1), rtol=1e-3, atol=1e-3 * scale
        )


def test_the_fisher_depends_on_the_seed_alone(name: str, model: PreTrainedModel) -> None:
    features, task = samples(name, 6), task_for(name)
    first, again, other = (gather_fisher(model, task, features, seed=seed) for seed in (1, 1, 2))
    for branch in branches_of(model):
        assert torch.equal(first.gamma[branch.name], again.gamma[branch.name])
        assert not torch.equal(first.gamma[branch.name], other.gamma[branch.name])


def stream_by_hand(model: PreTrainedModel, branch: Branch, features: list[dict[str, Any]]) -> torch.Tensor:
    """Return the stream after a branch, (tokens, hidden), taken where the model reads it next."""
    layer: Any = architecture_of(model).layers(model)[branch.layer]
    seen: list[torch.Tensor] = []
    if hasattr(layer, "ln_1"):
        reader = layer.ln_2 if branch.kind == "attention" else layer

        def keep(_: Any, given: Any, output: Any) -> None:
            seen.append((given[0] if branch.kind == "attention" else output)[0])

    else:
        reader = (layer.attention.output if branch.kind == "attention" else layer.output).LayerNorm

        def keep(_: Any, given: Any, output: Any) -> None:
            seen.append(given[0][0])

    with torch.no_grad(), hooked(reader, keep):
        for _, batch in one_by_one(features):
            model(**batch)
    return torch.cat(seen).double()


@pytest.mark.parametrize("batch_size", [1, 3, 50])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_inputs_are_weighted_by_token(
    name: str, model: PreTrainedModel, batch_size: int, weighted: bool
) -> None:
    features = samples(name, 8)
    branches = branches_of(model)[1:5]  # not all branches
    tokens = sum(len(sample["input_ids"]) for sample in features)
    own = {
        branch.name: torch.rand(tokens, generator=torch.Generator().manual_seed(place))
        for place, branch in enumerate(branches)
    }
    weights: dict[str, torch.Tensor | None] = {
        branch.name: own[branch.name] if weighted and place != 1 else None
        for place, branch in enumerate(branches)
    }
    found = gather_statistics(model, task_for(name), features, branches, weights, batch_size=batch_size)
    assert list(found) == [branch.name for branch in branches]
    inputs, _ = by_hand(model, features)
    for branch in branches:
        x = torch.cat(inputs[branch.name]).double()  # in the order of the weights
        w = weights[branch.name]
        w = torch.ones(tokens) if w is None else w
        w = w.double()
        expected = 2 * (x * w[:, None]).T @ x / w.sum()
        moments = found[branch.name].moments
        torch.testing.assert_close(moments.hessian, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(moments.mean, w @ x / w.sum(), rtol=1e-4, atol=1e-5)
        assert moments.count == tokens
        if weighted and weights[branch.name] is not None:  # control: the weights matter
            assert (2 * x.T @ x / tokens - expected).abs().max() > 1e-3


@pytest.mark.parametrize("batch_size", [2, 50])
def test_stream_statistics_equal_those_computed_sample_by_sample(
    name: str, model: PreTrainedModel, batch_size: int
) -> None:
    features = samples(name, 6)
    nothing: dict[str, torch.Tensor | None] = {}
    found = gather_statistics(
        model, task_for(name), features, branches_of(model), nothing, batch_size=batch_size
    )
    for branch in branches_of(model):
        stream = stream_by_hand(model, branch, features)
        variance = stream.var(-1, correction=0)
        normalised = (stream - stream.mean(-1, keepdim=True)) / variance.sqrt()[:, None]
        norm = architecture_of(model).norm_after(model, branch)
        assert (norm is None) == (name == DECODER)
        if norm is not None:
            normalised = normalised * norm.weight.detach().double()
        inputs = found[branch.name]
        assert inputs.inverse_variance == pytest.approx(float((1 / variance).mean()), rel=1e-4)
        assert inputs.spread == pytest.approx(float(normalised.var(0, correction=0).sum()), rel=1e-4)


def test_tokens_with_a_constant_stream_are_left_out() -> None:
    """Their inverse variance would outweigh that of all other tokens."""
    model = lively_model(DECODER)
    with torch.no_grad():
        layer: Any = architecture_of(model).layers(model)[0]
        layer.attn.c_proj.weight.zero_()
        layer.attn.c_proj.bias.zero_()
        for embedding in (model.transformer.wte, model.transformer.wpe):  # type: ignore[union-attr]
            embedding.weight[: 10 if embedding is model.transformer.wte else None] = 0  # type: ignore[union-attr, index]
    features = [
        {"input_ids": [token, 30, 40], "attention_mask": [1, 1, 1], "labels": [token, 30, 40]}
        for token in (5, 6, 20)
    ]
    branch = branches_of(model)[0]
    inputs = gather_statistics(model, task_for(DECODER), features, [branch], {})[branch.name]
    stream = stream_by_hand(model, branch, features)
    variance = stream.var(-1, correction=0)
    assert (variance < 1e-12).sum() == 2
    alive = variance[variance >= 1e-12]
    assert inputs.inverse_variance == pytest.approx(float((1 / alive).mean()), rel=1e-4)


def test_the_moments_of_an_attention_cover_all_its_heads() -> None:
    model = lively_model(CLASSIFIER)
    branch = branches_of(model)[0]
    inputs = gather_statistics(model, task_for(CLASSIFIER), samples(CLASSIFIER, 3), [branch], {})[branch.name]
    assert isinstance(inputs, BranchStatistics)
    assert isinstance(inputs.moments, Moments)
    assert inputs.moments.in_features == HEADS * branch.group_size == HIDDEN

"""What the loss feels and what modules are given, against brute force; padding and batches do not matter."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from obs_structured import Moments
from transformers import PreTrainedModel
from ziplm import BadRun, ZipLMError
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.inputs import BranchInputs
from ziplm.stages.gradients import batch_gradients, frozen
from ziplm.stages.calibrate import gather_fisher, gather_inputs
from ziplm.stages.fisher import Fisher
from ziplm_models import HEADS, HIDDEN
from ziplm_pipeline import (
    CLASSIFIER,
    DECODER,
    ARCHITECTURES,
    KnownScore,
    MadeUpTask,
    hooked,
    lively_model,
    one_by_one,
    samples,
    task_for,
)


def modules_of(model: PreTrainedModel) -> list[Branch]:
    return architecture_of(model).modules(model)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> PreTrainedModel:
    return lively_model(name, attn_pdrop=0.1) if name == DECODER else lively_model(name)


def score_with_change(
    model: PreTrainedModel,
    module: Branch,
    batch: dict[str, torch.Tensor],
    place: tuple[int, int, int],
    by: float,
) -> float:
    """The score when one number of a module's output is changed."""

    def change(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[place] += by
        return output

    with torch.no_grad(), hooked(architecture_of(model).output_layer(model, module), change):
        head = KnownScore()
        return float(head.scores(head.outputs(model, batch), batch).sum())


def test_gradients_are_slopes_of_the_score(name: str) -> None:
    """Finite differences in float64: a small number is added to one output of one module at one token."""
    model = lively_model(name).double()
    modules = modules_of(model)
    generator = torch.Generator().manual_seed(0)
    features = samples(name, 7)
    seen = 0
    for batch, inputs, gradients in batch_gradients(model, MadeUpTask(KnownScore()), features, modules, 3, 0):
        seen += len(batch["input_ids"])
        assert list(gradients) == list(inputs) == [module.name for module in modules]
        for module in modules:
            found = gradients[module.name]
            assert found.abs().max() > 1e-3
            rows, tokens, _ = found.shape
            for _ in range(2):
                place = tuple(int(torch.randint(n, (), generator=generator)) for n in (rows, tokens, HIDDEN))
                slope = (
                    score_with_change(model, module, batch, place, 1e-5)
                    - score_with_change(model, module, batch, place, -1e-5)
                ) / 2e-5
                assert float(found[place]) == pytest.approx(slope, rel=1e-5, abs=1e-8), (module.name, place)
            padding = batch["attention_mask"] == 0
            assert not found[padding].any()
    assert seen == 7


def by_hand(
    model: PreTrainedModel, features: list[dict[str, Any]]
) -> tuple[dict[str, list[torch.Tensor]], dict[str, list[torch.Tensor]]]:
    """Inputs and gradients of all modules, sample by sample without padding, (tokens, …) each."""
    inputs: dict[str, list[torch.Tensor]] = {module.name: [] for module in modules_of(model)}
    gradients: dict[str, list[torch.Tensor]] = {module.name: [] for module in modules_of(model)}
    head = KnownScore()
    kept: dict[str, torch.Tensor] = {}

    def watch(own: str) -> Callable[..., None]:
        def keep(_: Any, given: Any, output: torch.Tensor) -> None:
            inputs[own].append(given[0].detach()[0])
            kept[own] = output

        return keep

    with ExitStack() as stack:
        for module in modules_of(model):
            layer = architecture_of(model).output_layer(model, module)
            stack.enter_context(hooked(layer, watch(module.name)))
        for _, batch in one_by_one(features):
            score = head.scores(head.outputs(model, batch), batch).sum()
            for own, gradient in zip(kept, torch.autograd.grad(score, list(kept.values())), strict=True):
                gradients[own].append(gradient[0])
    return inputs, gradients


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_the_loss_metric_is_the_second_moment_of_gradients(
    name: str, model: PreTrainedModel, batch_size: int
) -> None:
    features = samples(name, 8)
    done: list[tuple[int, int]] = []
    metric = gather_fisher(
        model,
        MadeUpTask(KnownScore()),
        features,
        batch_size=batch_size,
        progress=lambda *now: done.append(now),
    )
    assert done[-1] == (8, 8)
    _, gradients = by_hand(model, features)
    for module in modules_of(model):
        g = torch.cat(gradients[module.name])
        scale = float(g.square().mean())
        torch.testing.assert_close(
            metric.gamma[module.name], (g.T @ g / len(g)).double(), rtol=1e-4, atol=1e-4 * scale
        )
        torch.testing.assert_close(
            metric.squares[module.name], g.square().sum(-1), rtol=1e-3, atol=1e-3 * scale
        )


def test_what_is_drawn_depends_on_the_seed_alone(name: str, model: PreTrainedModel) -> None:
    features, task = samples(name, 6), task_for(name)
    first, again, other = (gather_fisher(model, task, features, seed=seed) for seed in (1, 1, 2))
    for module in modules_of(model):
        assert torch.equal(first.gamma[module.name], again.gamma[module.name])
        assert not torch.equal(first.gamma[module.name], other.gamma[module.name])


def test_outputs_that_are_not_numbers_are_told_about() -> None:
    model = lively_model(CLASSIFIER)
    with torch.no_grad():
        model.classifier.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(ZipLMError, match=r"outputs are not finite.*--no-gradients"):
        gather_fisher(model, task_for(CLASSIFIER), samples(CLASSIFIER, 4))


def stream_by_hand(model: PreTrainedModel, module: Branch, features: list[dict[str, Any]]) -> torch.Tensor:
    """The stream after a module, (tokens, hidden), seen where the next part of the model reads it."""
    layer: Any = architecture_of(model).layers(model)[module.layer]
    seen: list[torch.Tensor] = []
    if hasattr(layer, "ln_1"):
        reader = layer.ln_2 if module.kind == "attention" else layer

        def keep(_: Any, given: Any, output: Any) -> None:
            seen.append((given[0] if module.kind == "attention" else output)[0])

    else:
        reader = (layer.attention.output if module.kind == "attention" else layer.output).LayerNorm

        def keep(_: Any, given: Any, output: Any) -> None:
            seen.append(given[0][0])

    with torch.no_grad(), hooked(reader, keep):
        for _, batch in one_by_one(features):
            model(**batch)
    return torch.cat(seen).double()


@pytest.mark.parametrize("batch_size", [1, 3, 50])
@pytest.mark.parametrize("weighted", [False, True])
def test_inputs_are_gathered_by_weight(
    name: str, model: PreTrainedModel, batch_size: int, weighted: bool
) -> None:
    features = samples(name, 8)
    modules = modules_of(model)[1:5]  # some of them
    tokens = sum(len(sample["input_ids"]) for sample in features)
    own = {
        m.name: torch.rand(tokens, generator=torch.Generator().manual_seed(i)) for i, m in enumerate(modules)
    }
    weights: dict[str, torch.Tensor | None] = {
        m.name: own[m.name] if weighted and i != 1 else None for i, m in enumerate(modules)
    }
    found = gather_inputs(model, task_for(name), features, modules, weights, batch_size=batch_size)
    assert list(found) == [module.name for module in modules]
    inputs, _ = by_hand(model, features)
    for module in modules:
        x = torch.cat(inputs[module.name]).double()  # in the order of the weights
        w = weights[module.name]
        w = torch.ones(tokens) if w is None else w
        w = w.double()
        expected = 2 * (x * w[:, None]).T @ x / w.sum()
        moments = found[module.name].moments
        torch.testing.assert_close(moments.hessian, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(moments.mean, w @ x / w.sum(), rtol=1e-4, atol=1e-5)
        assert moments.count == tokens
        if weighted and weights[module.name] is not None:  # control: weights show
            assert (2 * x.T @ x / tokens - expected).abs().max() > 1e-3


@pytest.mark.parametrize("batch_size", [2, 50])
def test_stream_statistics(name: str, model: PreTrainedModel, batch_size: int) -> None:
    features = samples(name, 6)
    nothing: dict[str, torch.Tensor | None] = {}
    found = gather_inputs(model, task_for(name), features, modules_of(model), nothing, batch_size=batch_size)
    for module in modules_of(model):
        stream = stream_by_hand(model, module, features)
        variance = stream.var(-1, correction=0)
        normalised = (stream - stream.mean(-1, keepdim=True)) / variance.sqrt()[:, None]
        norm = architecture_of(model).norm_after(model, module)
        assert (norm is None) == (name == DECODER)
        if norm is not None:
            normalised = normalised * norm.weight.detach().double()
        inputs = found[module.name]
        assert inputs.inverse_variance == pytest.approx(float((1 / variance).mean()), rel=1e-4)
        assert inputs.spread == pytest.approx(float(normalised.var(0, correction=0).sum()), rel=1e-4)


def test_a_constant_stream_says_nothing() -> None:
    """Tokens whose stream has no variance must not outweigh all others."""
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
    module = modules_of(model)[0]
    inputs = gather_inputs(model, task_for(DECODER), features, [module], {})[module.name]
    stream = stream_by_hand(model, module, features)
    variance = stream.var(-1, correction=0)
    assert (variance < 1e-12).sum() == 2
    alive = variance[variance >= 1e-12]
    assert inputs.inverse_variance == pytest.approx(float((1 / alive).mean()), rel=1e-4)


def metric_of(squares: torch.Tensor, gamma: torch.Tensor | None = None) -> Fisher:
    return Fisher({"m": torch.eye(3) if gamma is None else gamma}, {"m": squares})


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=60), st.integers(1, 200))
def test_tokens_weigh_what_the_loss_feels_of_them(values: list[float], columns: int) -> None:
    squares = torch.tensor(values)
    weights, effective = metric_of(squares).token_weights("m", columns)
    if weights is None:
        assert effective == len(values)
        mean = squares.double().mean()
        if mean > 0:
            w = 0.9 * squares.double() / mean + 0.1
            assert int(w.sum() ** 2 / w.square().sum()) < 0.25 * columns
        return
    assert 0.25 * columns <= effective <= len(values)
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights.min()) >= 0.1 - 1e-12
    others = weights - 0.1  # the rest is in proportion to the squares
    torch.testing.assert_close(others * squares.double().sum(), squares.double() * others.sum())


def test_few_tokens_that_outweigh_all_others_are_not_trusted() -> None:
    squares = torch.ones(1000)
    even, effective = metric_of(squares).token_weights("m", 100)
    assert even is not None
    assert torch.equal(even, torch.ones(1000, dtype=torch.float64))
    assert effective == 1000
    squares[0] = 1e9
    assert metric_of(squares).token_weights("m", 100) == (None, 1000)
    assert metric_of(torch.zeros(5)).token_weights("m", 1) == (None, 5)


def test_columns_are_chosen_under_gamma_and_a_little_of_everything() -> None:
    root = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gamma = 7 * root @ root.T
    chosen = metric_of(torch.ones(1), gamma).selection("m")
    expected = 0.9 * gamma / (gamma.trace() / 3) + 0.1 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(chosen, expected)
    assert float(chosen.trace() / 3) == pytest.approx(1)
    assert torch.linalg.eigvalsh(chosen).min() > 0.09
    assert torch.equal(metric_of(torch.ones(1), torch.zeros(3, 3)).selection("m"), torch.eye(3))


def test_a_saved_metric_is_the_same(tmp_path: Path, name: str, model: PreTrainedModel) -> None:
    metric = gather_fisher(model, task_for(name), samples(name, 4))
    path = tmp_path / "state" / "metric.safetensors"
    metric.save(path)
    loaded = Fisher.load(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for kind in ("gamma", "squares"):
        before, after = getattr(metric, kind), getattr(loaded, kind)
        assert sorted(before) == sorted(after)
        assert all(torch.equal(before[own], after[own]) for own in before)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * 100])
def test_a_damaged_metric_is_told_about(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "metric.safetensors"
    metric_of(torch.ones(5)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadRun, match=r"metric.safetensors is damaged; delete it"):
        Fisher.load(path)


def test_a_model_is_as_before_also_after_an_error() -> None:
    model = lively_model(CLASSIFIER).train()
    model.classifier.weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with frozen(model):
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(KeyError), frozen(model):
        raise KeyError
    assert model.training
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    gather_fisher(model, task_for(CLASSIFIER), samples(CLASSIFIER, 3))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_inputs_of_heads_are_as_wide_as_the_heads() -> None:
    model = lively_model(CLASSIFIER)
    module = modules_of(model)[0]
    inputs = gather_inputs(model, task_for(CLASSIFIER), samples(CLASSIFIER, 3), [module], {})[module.name]
    assert isinstance(inputs, Inputs)
    assert isinstance(inputs.moments, Moments)
    assert inputs.moments.in_features == HEADS * module.group_size == HIDDEN

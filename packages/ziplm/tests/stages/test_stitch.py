"""A stitched candidate computes the loss of the shrunk model, for any history and any size of the caches."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel
from ziplm import shrink
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.evaluate import divergences
from ziplm.stages.replay import replayed
from ziplm.stages.stitch import CandidateLoss, Stitcher
from ziplm.tasks import Task
from ziplm.tasks.heads import Embedding, TokenClassification, mean_divergence
from ziplm_models import PATTERNS, removed_by, sizes_left
from ziplm_pipeline import (
    ARCHITECTURES,
    CLASSIFIER,
    DECODER,
    MadeUpTask,
    assert_same_parameters,
    lively_model,
    named_traces,
    parameters_of,
    samples,
    task_for,
    with_another_head,
)

MODELS = {name: lively_model(name) for name in ARCHITECTURES}
TRACES = {name: named_traces(model) for name, model in MODELS.items()}
BRANCHES = {name: architecture_of(model).branches(model) for name, model in MODELS.items()}


def shrunk(name: str, removed: Sequence[int]) -> PreTrainedModel:
    return shrink(MODELS[name], removed, [TRACES[name].get(branch.name) for branch in BRANCHES[name]])


def loss_by_hand(
    dense: PreTrainedModel, small: PreTrainedModel, task: Task, features: Sequence[Any], loss: str = "kl"
) -> float:
    """Compute the loss of a shrunk model with all samples in one batch; a task's loss sample by sample."""
    with torch.no_grad():
        if loss == "kl":
            batch = task.collate(features)
            outputs, reference = (task.head.outputs(model, batch) for model in (small, dense))
            total, count = task.head.divergence(small, outputs, dense, reference, batch)
            return total / count
        total, count = 0.0, 0
        for feature in features:
            batch = task.collate([feature])
            labels = len(feature["labels"]) - 1 if isinstance(feature["labels"], list) else 1
            total, count = total + float(small(**batch).loss) * labels, count + labels
        return total / count


def candidates(branches: Sequence[Branch]) -> st.SearchStrategy[list[list[int]]]:
    """Return a strategy for sequences of candidates, mostly small changes of earlier ones, as in a search."""

    @st.composite
    def made(draw: st.DrawFn) -> list[list[int]]:
        sizes = [branch.groups for branch in branches]
        one = st.tuples(*(st.one_of(st.integers(0, n), st.sampled_from([0, n])) for n in sizes)).map(list)
        row = [draw(one)]
        for _ in range(draw(st.integers(1, 6))):
            if draw(st.integers(0, 3)) == 0:
                row.append(draw(one))
                continue
            base = list(draw(st.sampled_from(row)))
            place = draw(st.integers(0, len(sizes) - 1))
            base[place] = draw(st.integers(0, sizes[place]))
            row.append(base)
        return row

    return made()


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(max_examples=8)
@given(data=st.data(), budgets=st.sampled_from([(2**30, 2**30), (1, 2**30), (2**30, 1), (5000, 9000)]))
def test_the_loss_of_each_candidate_in_a_sequence_is_that_of_the_shrunk_model(
    name: str, data: st.DataObject, budgets: tuple[int, int]
) -> None:
    cache_bytes, state_bytes = budgets
    features, task = samples(name, 7), task_for(name)
    stitcher = Stitcher(MODELS[name], TRACES[name], cache_bytes)
    evaluate = CandidateLoss(stitcher, task, features, batch_size=3, state_bytes=state_bytes)
    before = parameters_of(MODELS[name])
    for removed in data.draw(candidates(BRANCHES[name])):
        expected = loss_by_hand(MODELS[name], shrunk(name, removed), task, features)
        found = evaluate(sizes_left(MODELS[name], removed))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), removed
    assert_same_parameters(MODELS[name], before)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("loss", ["kl", "task"])
def test_the_loss_without_whole_branches_is_that_of_the_shrunk_model(name: str, loss: str) -> None:
    features, task = samples(name, 6), task_for(name)
    evaluate = CandidateLoss(Stitcher(MODELS[name], TRACES[name]), task, features, batch_size=4, loss=loss)
    seen = set()
    for pattern in PATTERNS:
        removed = removed_by(MODELS[name], pattern)
        small = shrunk(name, removed)
        found = evaluate(sizes_left(MODELS[name], removed))
        expected = loss_by_hand(MODELS[name], small, task, features, loss)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), pattern
        seen.add(round(found, 7))
    assert len(seen) == len(PATTERNS)  # control: all patterns give different models


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_divergence_is_zero_if_nothing_is_removed(name: str) -> None:
    features, task = samples(name, 5), task_for(name)
    evaluate = CandidateLoss(Stitcher(MODELS[name], TRACES[name]), task, features)
    everything, nothing = (
        sizes_left(MODELS[name], removed_by(MODELS[name], pattern)) for pattern in ("everything", "nothing")
    )
    assert evaluate(nothing) == pytest.approx(0, abs=1e-7)
    assert evaluate(everything) > 1e-3
    assert evaluate(nothing) == pytest.approx(0, abs=1e-7)


@torch.no_grad()
def test_the_reference_predicts_with_its_own_language_head() -> None:
    dense, task = MODELS[DECODER], task_for(DECODER)
    trained, features = with_another_head(dense), samples(DECODER, 5)
    total, count = 0.0, 0
    for feature in features:
        batch = {name: value for name, value in task.collate([feature]).items() if name != "labels"}
        p, q = (model(**batch).logits[0, :-1].double().softmax(-1) for model in (dense, trained))
        total, count = total + float((p * (p / q).log()).sum()), count + len(p)
    expected = pytest.approx(total / count, rel=1e-4)
    reference, stitcher = DenseOutputs(dense, task), Stitcher(trained, {})
    assert mean_divergence(divergences(trained, reference, task, features)) == expected
    assert CandidateLoss(stitcher, task, features, reference=reference)(stitcher.sizes) == expected
    assert CandidateLoss(stitcher, task, features)(stitcher.sizes) == pytest.approx(0, abs=1e-7)  # control


def test_several_evaluators_can_share_a_stitcher() -> None:
    task, model = task_for(CLASSIFIER), MODELS[CLASSIFIER]
    stitcher = Stitcher(model, TRACES[CLASSIFIER])
    parts = [samples(CLASSIFIER, 5, seed) for seed in (1, 2)]
    evaluators = [CandidateLoss(stitcher, task, part, batch_size=2) for part in parts]
    rows = [
        removed_by(model, pattern) for pattern in ("some heads", "one ffn", "all attention", "some heads")
    ]
    for removed, (evaluate, part) in itertools.product(rows, zip(evaluators, parts, strict=True)):
        expected = loss_by_hand(model, shrunk(CLASSIFIER, removed), task, part)
        assert evaluate(sizes_left(model, removed)) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_layers_before_the_first_change_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[DECODER]
    stitcher = Stitcher(model, TRACES[DECODER])
    evaluate = CandidateLoss(stitcher, task_for(DECODER), samples(DECODER, 4), batch_size=4)
    layers = architecture_of(model).layers(stitcher.model)
    kind = type(layers[0])
    forward, runs = kind.forward, []

    def recorded(layer: Any, *args: Any, **kwargs: Any) -> Any:
        runs.append(layers.index(layer))
        return forward(layer, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", recorded)
    start = sizes_left(model, removed_by(model, "nothing"))
    evaluate(start)
    assert runs == [0, 1, 2]
    for place, expected in ((5, [2]), (4, [2]), (3, [1, 2]), (1, [0, 1, 2])):
        runs.clear()
        changed = list(start)
        changed[place] = changed[place]._replace(groups=changed[place].groups - 2)
        assert evaluate(changed) > 0
        assert runs == expected


def test_first_matrices_of_all_sizes_are_views_of_one_tensor() -> None:
    model = MODELS[CLASSIFIER]
    stitcher = Stitcher(model, TRACES[CLASSIFIER])
    places = []
    for removed in (3, 7, 20):
        stitcher.install(sizes_left(model, [0, removed, 0, 0, 0, 0]))
        layer: Any = architecture_of(model).layers(stitcher.model)[0]
        places.append(layer.intermediate.dense.weight.untyped_storage().data_ptr())
        assert layer.intermediate.dense.out_features == 24 - removed
    assert len(set(places)) == 1


def test_the_cache_of_smaller_branches_stays_below_its_limit() -> None:
    model = MODELS[CLASSIFIER]
    stitcher = Stitcher(model, TRACES[CLASSIFIER], cache_bytes=20_000)
    for removed in range(1, 24):
        stitcher.install(sizes_left(model, [0, removed, 0, 24 - removed, 0, 0]))
        kept = sum(stitcher._bytes_of(size) for _, size in stitcher._built)
        assert kept == stitcher._bytes
        assert kept <= 20_000 or len(stitcher._built) == 1


def test_a_search_leaves_no_hooks_in_the_model() -> None:
    """No attribute of any module is added or replaced, and the model can still be trained."""
    model = lively_model(CLASSIFIER)
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    stitcher = Stitcher(model, named_traces(model))
    evaluate = CandidateLoss(stitcher, task_for(CLASSIFIER), samples(CLASSIFIER, 4))
    for pattern in ("nothing", "some columns", "a whole layer", "heads and columns"):
        evaluate(sizes_left(model, removed_by(model, pattern)))
    for name, module in model.named_modules():
        assert list(module.__dict__) == list(before[name])
    for layer in architecture_of(model).layers(stitcher.model):
        assert "forward" not in layer.__dict__
        assert not layer._forward_pre_hooks
    model(**task_for(CLASSIFIER).collate(samples(CLASSIFIER, 2))).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_replayed_layers_are_restored_after_an_error() -> None:
    architecture = architecture_of(MODELS[DECODER])
    layers = architecture.layers(MODELS[DECODER])
    with pytest.raises(KeyError), replayed(architecture, layers, 2, torch.zeros(1)):
        raise KeyError
    assert all("forward" not in layer.__dict__ for layer in layers)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("BertForTokenClassification", MadeUpTask(TokenClassification())),
        ("BertModel", MadeUpTask(Embedding())),
        ("GPT2ForSequenceClassification", task_for(CLASSIFIER)),
    ],
)
def test_the_loss_of_every_head_is_that_of_the_shrunk_model(name: str, task: MadeUpTask) -> None:
    model = lively_model(name)
    traces = named_traces(model)
    features = [{k: v for k, v in sample.items() if k != "labels"} for sample in samples(name, 5)]
    evaluate = CandidateLoss(Stitcher(model, traces), task, features, batch_size=2)
    for pattern in ("some heads", "a whole layer", "heads and columns"):
        removed = removed_by(model, pattern)
        small = shrink(model, removed, list(traces.values()))
        expected = loss_by_hand(model, small, task, features)
        assert evaluate(sizes_left(model, removed)) == pytest.approx(expected, rel=1e-4, abs=1e-5)

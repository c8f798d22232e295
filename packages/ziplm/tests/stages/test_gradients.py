"""Gradients at the outputs of branches equal finite differences; the model is restored afterwards."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import ZipLMError
from ziplm.architectures.base import Branch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.calibrate import gather_fisher
from ziplm.stages.gradients import batch_gradients, frozen
from ziplm_models import HIDDEN
from ziplm_pipeline import (
    ARCHITECTURES,
    CLASSIFIER,
    KnownScore,
    MadeUpTask,
    hooked,
    lively_model,
    samples,
    task_for,
)


def branches_of(model: PreTrainedModel) -> list[Branch]:
    return architecture_of(model).branches(model)


def score_with_change(
    model: PreTrainedModel,
    branch: Branch,
    batch: dict[str, torch.Tensor],
    place: tuple[int, int, int],
    by: float,
) -> float:
    """Return the score when one number of a branch's output is changed."""

    def change(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[place] += by
        return output

    with torch.no_grad(), hooked(architecture_of(model).output_layer(model, branch), change):
        head = KnownScore()
        return float(head.scores(head.outputs(model, batch), batch).sum())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_equal_finite_differences_of_the_score(name: str) -> None:
    """Compare with finite differences in float64, at random outputs and tokens."""
    model = lively_model(name).double()
    branches = branches_of(model)
    generator = torch.Generator().manual_seed(0)
    features = samples(name, 7)
    seen = 0
    for batch, inputs, gradients, _ in batch_gradients(
        model, MadeUpTask(KnownScore()), features, branches, 3, 0
    ):
        seen += len(batch["input_ids"])
        assert list(gradients) == list(inputs) == [branch.name for branch in branches]
        for branch in branches:
            found = gradients[branch.name]
            assert found.abs().max() > 1e-3
            rows, tokens, _ = found.shape
            for _ in range(2):
                place = tuple(int(torch.randint(n, (), generator=generator)) for n in (rows, tokens, HIDDEN))
                slope = (
                    score_with_change(model, branch, batch, place, 1e-5)
                    - score_with_change(model, branch, batch, place, -1e-5)
                ) / 2e-5
                assert float(found[place]) == pytest.approx(slope, rel=1e-5, abs=1e-8), (branch.name, place)
            padding = batch["attention_mask"] == 0
            assert not found[padding].any()
    assert seen == 7


def test_outputs_that_are_not_finite_are_reported() -> None:
    model = lively_model(CLASSIFIER)
    with torch.no_grad():
        model.classifier.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(ZipLMError, match=r"outputs are not finite.*--no-gradients"):
        gather_fisher(model, task_for(CLASSIFIER), samples(CLASSIFIER, 4))


def test_a_frozen_model_is_restored_also_after_an_error() -> None:
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

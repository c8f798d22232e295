"""Outputs of the dense model are computed once for each batch, where they are small."""

import copy

import pytest
import torch
from transformers import PreTrainedModel
from ziplm.stages import dense_outputs
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm_pipeline import CLASSIFIER, DECODER, lively_model, samples, task_for


class Counted:
    """Counts the forward passes of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.passes = 0
        model.base_model.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.passes += 1


def batches_of(name: str, count: int, size: int) -> list[dict[str, torch.Tensor]]:
    return [batch for _, batch in task_for(name).batches(samples(name, count), size)]


@pytest.mark.parametrize("name", [CLASSIFIER, DECODER])
def test_outputs_are_those_of_the_model_and_computed_once(name: str) -> None:
    model, task = lively_model(name), task_for(name)
    outputs, counted = DenseOutputs(model, task), Counted(model)
    batches = batches_of(name, 12, 4)
    first = [outputs(batch) for batch in batches]
    assert counted.passes == len(batches) == 3
    again = [outputs({key: value.clone() for key, value in batch.items()}) for batch in batches]
    assert counted.passes == 3
    for made, known, batch in zip(first, again, batches, strict=True):
        assert torch.equal(made, known)
        with torch.inference_mode():
            torch.testing.assert_close(made, task.head.outputs(model, batch), rtol=0, atol=0)


def test_other_batches_and_other_models_have_their_own() -> None:
    model, task = lively_model(CLASSIFIER), task_for(CLASSIFIER)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.weight.mul_(-1)  # type: ignore[union-attr, operator]
    outputs = DenseOutputs(model, task)
    batch, next_batch = batches_of(CLASSIFIER, 8, 4)
    assert not torch.equal(outputs(batch), outputs(next_batch))
    assert not torch.equal(outputs(batch), DenseOutputs(other, task)(batch))
    masked = {**batch, "attention_mask": batch["attention_mask"].clone()}
    masked["attention_mask"][:, -1] = 0
    assert not torch.equal(outputs(batch), outputs(masked))


def test_large_outputs_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = lively_model(CLASSIFIER), task_for(CLASSIFIER)
    outputs, counted = DenseOutputs(model, task), Counted(model)
    batch, next_batch = batches_of(CLASSIFIER, 8, 4)
    monkeypatch.setattr(dense_outputs, "MOST_BYTES", outputs(batch).nbytes)
    assert torch.equal(outputs(next_batch), outputs(next_batch))
    assert counted.passes == 3
    outputs(batch)  # fits, and is still known
    assert counted.passes == 3

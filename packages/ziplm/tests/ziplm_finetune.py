"""Short trainings of tiny models, and comparisons of weights."""

from dataclasses import replace
from pathlib import Path

import torch
from token_distill import DistillationLoss
from transformers import PreTrainedModel
from ziplm.options.training import TrainingOptions, TrainingSummary
from ziplm.stages.finetune import finetune
from ziplm_training import PaddedTask, examples

OPTIONS = TrainingOptions(learning_rate=1e-2, max_steps=20, batch_size=4, warmup_ratio=0.1, checkpoints=1)
OFTEN = replace(OPTIONS, checkpoints=4)
DISTILLED = DistillationLoss(task=0.2, logit=0.5, token=0.3, temperature=2.0)
MODELS = ["BertForSequenceClassification", "GPT2LMHeadModel"]


class Killed(Exception):
    """Ends a training early, like a killed process."""


def train(
    model: PreTrainedModel,
    folder: Path,
    options: TrainingOptions = OPTIONS,
    teacher: PreTrainedModel | None = None,
    loss: DistillationLoss | None = None,
    kill_after: int | None = None,
) -> TrainingSummary:
    """Train on made-up examples; raise Killed after the given step."""

    def progress(done: int, total: int) -> None:
        if done == kill_after:
            raise Killed

    data = examples(type(model).__name__, 22)  # 6 steps per epoch; the last batch is smaller
    return finetune(
        model, PaddedTask(), data, options, teacher=teacher, loss=loss, folder=folder, progress=progress
    )


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return copies of all weights."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two sets of weights are equal bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the Euclidean distance between two sets of weights."""
    return sum(float((one[name] - other[name]).double().square().sum()) for name in one) ** 0.5

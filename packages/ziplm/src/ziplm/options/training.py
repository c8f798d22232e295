"""Hyper-parameters and summary of a training."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ziplm.errors import UsageError

MOST_CHECKS, FEWEST_CHECKS = 10, 2  # of samples kept apart, in one training
CHECKED_AT_ONCE = 32  # in a forward pass, whatever the number of processes
CHECKED_SHARE = 0.2  # of the examples that a training sees; a check takes about half as long as training

Schedule = Literal["linear", "cosine", "constant_with_warmup"]
Precision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainingOptions:
    """Hyper-parameters of a training with AdamW.

    Attributes:
        learning_rate: peak learning rate.
        epochs: passes over the data, possibly fractional; ignored if `max_steps` is positive.
        max_steps: number of optimizer steps; -1 to train for `epochs`.
        batch_size: examples per forward pass in each process.
        gradient_accumulation: forward passes per optimizer step.
        weight_decay: weight decay, not applied to biases and norms.
        max_grad_norm: norm to which gradients are clipped; 0 disables clipping.
        warmup_ratio: share of all steps during which the learning rate rises from zero.
        schedule: learning rate schedule after the warmup.
        seed: seed of the data order and of dropout; the same seed gives the same weights.
        dropout: False trains without dropout, whatever the model's config says.
        precision: "float32", or on a GPU mixed precision with "bf16" or "fp16"; weights keep their type.
        checkpoints: number of evenly spaced checkpoints to resume from; samples kept apart are checked there.
        patience: number of checks in a row after which the training ends if their loss is not lower than that
            of the lowest check of a trained state; 0 for never.
        report_to: experiment trackers by their names in transformers, such as "tensorboard".
    """

    learning_rate: float = 5e-5
    epochs: float = 3.0
    max_steps: int = -1
    batch_size: int = 32
    gradient_accumulation: int = 1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_ratio: float = 0.0
    schedule: Schedule = "linear"
    seed: int = 0
    dropout: bool = True
    precision: Precision = "float32"
    checkpoints: int = 10
    patience: int = 0
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed, rule in (
            ("learning_rate", 0 < self.learning_rate < math.inf, "be positive"),
            ("epochs", 0 < self.epochs <= 1e6 or self.max_steps > 0, "be positive, and at most 1000000"),
            ("max_steps", self.max_steps > 0 or self.max_steps == -1, "be positive, or -1 to go by epochs"),
            ("batch_size", self.batch_size >= 1, "be at least 1"),
            ("gradient_accumulation", self.gradient_accumulation >= 1, "be at least 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "be zero or positive"),
            ("max_grad_norm", 0 <= self.max_grad_norm < math.inf, "be zero or positive"),
            ("warmup_ratio", 0 <= self.warmup_ratio < 1, "be at least 0 and below 1"),
            ("schedule", self.schedule in get_args(Schedule), f"be one of {', '.join(get_args(Schedule))}"),
            (
                "precision",
                self.precision in get_args(Precision),
                f"be one of {', '.join(get_args(Precision))}",
            ),
            ("checkpoints", self.checkpoints >= 1, "be at least 1"),
            ("patience", self.patience >= 0, "be zero or positive"),
        ):
            if not allowed:
                raise UsageError(f"{name} is {getattr(self, name)!r}", f"it must {rule}")


class Check(NamedTuple):
    """How a model does on samples kept apart from its training, at one of its steps.

    Attributes:
        step: number of optimizer steps so far; 0 is the model before the training.
        loss: mean loss on these samples.
        metric: main metric of the task on them; None if the loss is not the lowest so far, or if training
            examples lack what the metric needs.
    """

    step: int
    loss: float
    metric: float | None


@dataclass(frozen=True)
class TrainingSummary:
    """Summary of a finished training.

    Attributes:
        steps: number of optimizer steps; fewer than asked for if nothing improved.
        epochs: passes over the data.
        examples: examples seen by all processes, counting repetitions.
        seconds: duration of this call, without earlier calls that were killed.
        losses: about fifty pairs of a step and the mean loss since the previous one.
        checks: the checks on samples kept apart; empty without such samples.
        best_step: the step whose weights the model has: the last one, or that of the check with the lowest
            loss if it is clearly lower or if the training ended early; 0 is the model before the training.
            Without checks, the last one.
    """

    steps: int
    epochs: float
    examples: int
    seconds: float
    losses: tuple[tuple[int, float], ...]
    checks: tuple[Check, ...] = ()
    best_step: int = 0


def checks_within(seen: float, apart: int) -> int:
    """Return how often samples kept apart are checked in a training that sees so many examples."""
    return min(MOST_CHECKS, max(FEWEST_CHECKS, round(CHECKED_SHARE * seen / apart)))

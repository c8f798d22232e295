"""How to train, and what a training did."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ziplm.errors import UsageError

Schedule = Literal["linear", "cosine", "constant_with_warmup"]
Precision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; the optimizer is AdamW.

    Attributes:
        learning_rate: the highest one.
        epochs: passes over the data, also a fraction of one; not used if `max_steps` is positive.
        max_steps: optimizer steps; -1 to go by `epochs`.
        batch_size: examples in a forward pass, of each process.
        gradient_accumulation: forward passes to an optimizer step.
        weight_decay: not applied to biases and norms.
        max_grad_norm: to which gradients are clipped; 0 does not clip.
        warmup_ratio: the part of all steps in which the learning rate rises from zero.
        schedule: of the learning rate, after the warmup.
        seed: of the order of the data and of dropout; the same seed gives the same weights.
        dropout: False trains without, whatever the model's config says.
        precision: "float32", or on a GPU mixed with "bf16" or "fp16"; weights stay as they are.
        checkpoints: how many times, evenly, the state is saved to go on from.
        report_to: trackers by the names of transformers, such as "tensorboard".
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
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed, rule in (
            ("learning_rate", 0 < self.learning_rate < math.inf, "be positive"),
            ("epochs", 0 < self.epochs < math.inf or self.max_steps > 0, "be positive"),
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
        ):
            if not allowed:
                raise UsageError(f"{name} is {getattr(self, name)!r}", f"it must {rule}")


@dataclass(frozen=True)
class TrainingSummary:
    """What a training did.

    Attributes:
        steps: optimizer steps.
        epochs: passes over the data.
        examples: seen by all processes, repetitions included.
        seconds: of this call only, if an earlier one was killed.
        losses: (step, mean loss since the step before), some fifty of them.
    """

    steps: int
    epochs: float
    examples: int
    seconds: float
    losses: tuple[tuple[int, float], ...]

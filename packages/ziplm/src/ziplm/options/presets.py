"""The hyper-parameters of the ZipLM paper's gradual runs.

Source: the table "Hyper-parameters used for gradual ZipLM runs" in the appendix "Hyper-parameters for
Reproducibility" (https://arxiv.org/abs/2302.04089). Values that the table does not give are the defaults of
`TrainingOptions` and `LossWeights`: no warmup, gradients clipped to 1, temperature 1.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ziplm.errors import UsageError
from ziplm.options.training import TrainingOptions


@dataclass(frozen=True)
class LossWeights:
    """Weights λ1, λ2 and λ3 of the task, logit and token loss, and the temperature of the logit loss."""

    task: float
    logit: float
    token: float
    temperature: float = 1.0


_LOSSES = {
    "squad": LossWeights(0.0, 1.0, 0.0),
    "glue": LossWeights(0.0, 0.5, 0.5),
    "gpt2": LossWeights(1.0, 0.0, 0.0),
}
"""The weights of the paper. They are repeated from token-distill, whose import takes seconds."""


@dataclass(frozen=True)
class Preset:
    """A gradual run: fine-tune the dense model, then prune to each target in turn and fine-tune after each.

    Attributes:
        source: the experiment in the paper, in one line.
        targets: speedups over the dense model, in the order in which they are reached.
        before: training of the dense model.
        between: training after each target; its learning rate schedule restarts every time.
        loss: loss of the training after each target, with the dense model as teacher.
        max_length: maximum length of an example in tokens.
        calibration_samples: number of samples from which each pruning step collects its statistics.
    """

    source: str
    targets: tuple[float, ...]
    before: TrainingOptions
    between: TrainingOptions
    loss: LossWeights
    max_length: int
    calibration_samples: int

    def as_options(self) -> dict[str, Any]:
        """Return the preset as values of `Options` fields."""
        between, loss = self.between, self.loss
        return {
            "mode": "gradual",
            "speedup": self.targets,
            "dense_epochs": self.before.epochs if self.before.max_steps < 0 else 0.0,
            "dense_steps": self.before.max_steps,
            "epochs_per_step": between.epochs,
            "learning_rate": between.learning_rate,
            "train_batch_size": between.batch_size,
            "gradient_accumulation": between.gradient_accumulation,
            "warmup": between.warmup_ratio,
            "weight_decay": between.weight_decay,
            "dropout": between.dropout,
            "task_weight": loss.task,
            "logit_weight": loss.logit,
            "token_weight": loss.token,
            "temperature": loss.temperature,
            "keep_best": False,
            "max_length": self.max_length,
            "calibration_samples": self.calibration_samples,
        }


def _bert(
    source: str, data: str, batch_size: int, max_length: int, learning_rate: float, epochs: int, decay: float
) -> Preset:
    between = TrainingOptions(
        learning_rate=learning_rate, epochs=epochs, batch_size=batch_size, weight_decay=decay
    )
    return Preset(
        source=source,
        targets=tuple(float(speedup) for speedup in range(2, 16)),
        before=replace(between, epochs=3),
        between=between,
        loss=_LOSSES[data],
        max_length=max_length,
        calibration_samples=2048,
    )


# An optimizer step uses 128 windows of 1024 tokens, 8 of which fit a GPU at a time. Dropout is off while GPT2
# trains on OpenWebText ("We follow Komatsuzaki (2019) and disable dropout regularization").
_GPT2 = TrainingOptions(
    learning_rate=1e-3, epochs=2, batch_size=8, gradient_accumulation=16, weight_decay=0.0, dropout=False
)

PRESETS: Mapping[str, Preset] = {
    "bert-base-glue": _bert("BERT-base on SST-2, QNLI, MNLI, QQP", "glue", 32, 128, 8e-5, 8, 0.03),
    "bert-base-squad": _bert("BERT-base on SQuAD v1.1", "squad", 16, 384, 8e-5, 8, 0.03),
    "bert-large-squad": _bert("BERT-large on SQuAD v1.1", "squad", 16, 384, 5e-5, 10, 0.05),
    "gpt2-openwebtext": Preset(
        source="GPT2 on OpenWebText, without distillation to save memory",
        targets=(1.5, 2.0, 2.5, 3.0),
        before=replace(_GPT2, max_steps=50_000),
        between=_GPT2,
        loss=_LOSSES["gpt2"],
        max_length=1024,
        calibration_samples=512,
    ),
}


def find_preset(name: str) -> Preset:
    """Return the preset of that name; raise UsageError if there is none."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        raise UsageError(f"there is no preset {name!r}", f"try {', '.join(near or PRESETS)}")
    return PRESETS[name]

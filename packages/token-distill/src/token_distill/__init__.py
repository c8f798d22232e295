"""Distillation losses on plain tensors: logits, spans and layer-wise tokens."""

from ._logits import logit_loss, regression_loss, span_loss
from ._loss import DistillationLoss, LossParts
from ._outputs import Outputs
from ._teacher import Teacher
from ._tokens import token_loss

__all__ = [
    "DistillationLoss",
    "LossParts",
    "Outputs",
    "Teacher",
    "logit_loss",
    "regression_loss",
    "span_loss",
    "token_loss",
]

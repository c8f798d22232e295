"""Distillation losses on plain tensors: logits, answer spans and layer-wise tokens."""

from importlib.metadata import version

from ._logits import logit_loss, regression_loss, span_loss
from ._loss import DistillationLoss, LossParts
from ._outputs import Outputs
from ._teacher import Teacher
from ._tokens import token_loss

__version__ = version("token-distill")

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

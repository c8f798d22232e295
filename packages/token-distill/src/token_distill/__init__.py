"""Distillation losses on plain tensors: logits, answer spans, layer-wise tokens and pooled embeddings."""

from importlib.metadata import version

from ._cosine import cosine_loss
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
    "cosine_loss",
    "logit_loss",
    "regression_loss",
    "span_loss",
    "token_loss",
]

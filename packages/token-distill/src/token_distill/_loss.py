"""The distillation loss λ1 · task + λ2 · logit + λ3 · token + λ4 · cosine, and its parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ._checks import require_temperature
from ._cosine import Pooling, cosine_loss
from ._logits import logit_loss, regression_loss, span_loss
from ._outputs import Logits, Outputs
from ._tokens import Distance, token_loss

Head = Literal["auto", "classes", "span", "regression"]

_WEIGHTS = ("task", "logit", "token", "cosine")  # names of the parts and of their weights

# Weights (λ1, λ2, λ3) from the ZipLM paper, table "Hyper-parameters used for gradual ZipLM runs" in the
# appendix "Hyper-parameters for Reproducibility". The table names no temperature, so it stays 1; the paper
# trains GPT2 without distillation.
_PRESETS = {"squad": (0.0, 1.0, 0.0), "glue": (0.0, 0.5, 0.5), "gpt2": (1.0, 0.0, 0.0)}


@dataclass(frozen=True, eq=False)
class LossParts:
    """The loss of one batch, and the parts whose weighted sum it is.

    Attributes:
        total: the loss to train on: a scalar with a gradient, float32 or float64.
        task: the task loss before weighting, detached; None if its weight is zero.
        logit: the loss between the logits before weighting, detached; None if its weight is zero.
        token: the loss between the hidden states before weighting, detached; None if its weight is zero.
        cosine: the loss between the embeddings before weighting, detached; None if its weight is zero.
    """

    total: Tensor
    task: Tensor | None = None
    logit: Tensor | None = None
    token: Tensor | None = None
    cosine: Tensor | None = None

    def log(self) -> dict[str, float]:
        """Return the values of the total and of all computed parts, by name, for logging."""
        parts = {name: getattr(self, name) for name in ("total", *_WEIGHTS)}
        return {name: part.item() for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class DistillationLoss:
    """Weighted sum of task, logit, token and cosine loss; call it with the outputs of student and teacher.

    A part with weight zero is not computed, and its inputs may be missing.

    Attributes:
        task: weight λ1 of the task's own loss.
        logit: weight λ2 of the loss between the logits.
        token: weight λ3 of the loss between the hidden states.
        temperature: temperature of :func:`logit_loss` and :func:`span_loss`.
        distance: distance of :func:`token_loss`.
        head: the loss that compares the logits: "classes" for :func:`logit_loss`, "span" for
            :func:`span_loss`, "regression" for :func:`regression_loss`. With "auto", a pair of tensors is a
            span, one tensor (batch, 1) or (batch,) is a regression, and anything else is classes. A
            regression needs its own loss: over one output a KL is always zero, so with λ1 = 0 its head would
            not be trained.
        cosine: weight λ4 of :func:`cosine_loss` between the embeddings that `pooling` makes of the last
            hidden states; for sentence embedders, which have no logits.
        pooling: how the embedder pools its tokens, "mean" or "cls".

    Raises:
        ValueError: a weight is negative or not finite, all weights are zero, the temperature is out of range,
            or the distance, head or pooling is unknown.
    """

    task: float = 1.0
    logit: float = 0.0
    token: float = 0.0
    temperature: float = 1.0
    distance: Distance = "euclidean"
    head: Head = "auto"
    cosine: float = 0.0
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        for name in _WEIGHTS:
            weight = getattr(self, name)
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight {name} is {weight}; it must be finite, and zero or positive")
        if not any(getattr(self, name) for name in _WEIGHTS):
            raise ValueError("the weights task, logit, token and cosine are all 0; one must be positive")
        require_temperature(self.temperature)
        for name, value, known in (
            ("distance", self.distance, Distance),
            ("head", self.head, Head),
            ("pooling", self.pooling, Pooling),
        ):
            if value not in get_args(known):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(known))}")

    @classmethod
    def preset(cls, name: str) -> "DistillationLoss":
        """Return the loss with the weights of the ZipLM paper.

        Use ``dataclasses.replace`` to change some of its attributes.

        Args:
            name: "squad", "glue" or "gpt2".

        Raises:
            ValueError: the name is unknown.
        """
        if name not in _PRESETS:
            raise ValueError(f"preset is {name!r}; it must be one of {', '.join(_PRESETS)}")
        task, logit, token = _PRESETS[name]
        return cls(task=task, logit=logit, token=token)

    def __call__(
        self,
        student: Outputs,
        teacher: Outputs | None = None,
        *,
        task_loss: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] | None = None,
    ) -> LossParts:
        """Compute the loss of one batch.

        Args:
            student: outputs of the student.
            teacher: outputs of the teacher for the same batch; not needed if only the task loss has a weight.
            task_loss: scalar returned by the student's own loss function.
            mask: (batch, tokens), 1 or True for tokens, 0 for padding. It applies to hidden states, spans and
                logits (batch, tokens, classes), but not to logits (batch, classes).
            layers: indices of the layers that are not pruned away, as in :func:`token_loss`.

        Raises:
            ValueError: the inputs of a part with a positive weight are missing or invalid; see the function
                that computes it.
        """
        teacher = teacher or Outputs()
        task = self._task_part(task_loss) if self.task else None
        logit = self._logit_part(student.logits, teacher.logits, mask) if self.logit else None
        token = self._token_part(student, teacher, mask, layers) if self.token else None
        cosine = self._cosine_part(student, teacher, mask) if self.cosine else None
        parts = (task, logit, token, cosine)
        weights = (self.task, self.logit, self.token, self.cosine)
        weighted = [weight * part for weight, part in zip(weights, parts, strict=True) if part is not None]
        total = torch.stack(weighted).sum()
        return LossParts(total, *(None if part is None else part.detach() for part in parts))

    def _task_part(self, task_loss: Tensor | None) -> Tensor:
        if task_loss is None:
            raise _missing("task", "task_loss")
        return _usable_task_loss(task_loss)

    def _logit_part(self, student: Logits | None, teacher: Logits | None, mask: Tensor | None) -> Tensor:
        if student is None or teacher is None:
            raise _missing("logit", "logits of both models")
        head = _head_of(student) if self.head == "auto" else self.head
        if head == "span" and isinstance(student, tuple) and isinstance(teacher, tuple):
            return span_loss(student, teacher, self.temperature, mask)
        if head == "span" or isinstance(student, tuple) or isinstance(teacher, tuple):
            raise ValueError(
                f"head {head!r} cannot compare logits of types {type(student).__name__} and "
                f"{type(teacher).__name__}; a span needs a pair of tensors, other heads a single tensor"
            )
        if mask is not None and student.ndim != mask.ndim + 1:
            mask = None  # one row of logits per example, not per token
        if head == "regression":
            return regression_loss(student, teacher, mask)
        return logit_loss(student, teacher, self.temperature, mask)

    def _token_part(
        self, student: Outputs, teacher: Outputs, mask: Tensor | None, layers: Sequence[int] | None
    ) -> Tensor:
        if student.hidden_states is None or teacher.hidden_states is None:
            raise _missing("token", "hidden_states of both models")
        return token_loss(student.hidden_states, teacher.hidden_states, mask, layers, self.distance)

    def _cosine_part(self, student: Outputs, teacher: Outputs, mask: Tensor | None) -> Tensor:
        if not student.hidden_states or not teacher.hidden_states:
            raise _missing("cosine", "hidden_states of both models")
        return cosine_loss(student.hidden_states[-1], teacher.hidden_states[-1], mask, self.pooling)


def _head_of(logits: Logits) -> Head:
    if isinstance(logits, tuple):
        return "span"
    return "regression" if logits.ndim == 1 or logits.shape[1:] == (1,) else "classes"


def _usable_task_loss(loss: Tensor) -> Tensor:
    """Return the task loss in float32 or float64; raise unless it is a finite scalar."""
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"task_loss is {loss!r}; it must be a scalar tensor, such as the result of a loss function"
        )
    if loss.numel() != 1 or not torch.isfinite(loss):
        what = f"is {loss.item()}" if loss.numel() == 1 else f"has shape {tuple(loss.shape)}"
        raise ValueError(f"task_loss {what}; it must be one finite number")
    return loss.reshape(()).to(torch.promote_types(loss.dtype, torch.float32))


def _missing(part: str, needed: str) -> ValueError:
    return ValueError(f"the {part} loss has a weight but no inputs; pass {needed}, or set {part}=0")

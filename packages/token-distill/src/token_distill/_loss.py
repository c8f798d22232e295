"""The whole objective: λ1 · task + λ2 · logit + λ3 · token, and its parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ._checks import require_temperature
from ._logits import logit_loss, regression_loss, span_loss
from ._outputs import Logits, Outputs
from ._tokens import Distance, token_loss

Head = Literal["auto", "classes", "span", "regression"]

# Table "Hyper-parameters used for gradual ZipLM runs" (appendix "Hyper-parameters for Reproducibility")
# of the ZipLM paper: λ1, λ2, λ3. It names no temperature, so that stays 1; GPT2 is trained without
# distillation there.
_PRESETS = {"squad": (0.0, 1.0, 0.0), "glue": (0.0, 0.5, 0.5), "gpt2": (1.0, 0.0, 0.0)}


@dataclass(frozen=True, eq=False)
class LossParts:
    """The loss to train on, and what it is made of.

    Attributes:
        total: a scalar with a gradient, float32 or better.
        task, logit, token: the parts before weighting, without gradient; None where the weight is zero.
    """

    total: Tensor
    task: Tensor | None = None
    logit: Tensor | None = None
    token: Tensor | None = None

    def log(self) -> dict[str, float]:
        """The numbers that were computed, by name, for a progress bar or a log file."""
        parts = {"total": self.total, "task": self.task, "logit": self.logit, "token": self.token}
        return {name: part.item() for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class DistillationLoss:
    """Weights of the three losses, and how two of them are computed; call it with what the models returned.

    A part with weight zero is not computed, and what it would need may be missing.

    Attributes:
        task: weight λ1 of the task's own loss.
        logit: weight λ2 of the loss between the logits.
        token: weight λ3 of the loss between the hidden states.
        temperature: of :func:`logit_loss` and :func:`span_loss`.
        distance: of :func:`token_loss`.
        head: which loss compares the logits: "classes" :func:`logit_loss`, "span" :func:`span_loss`,
            "regression" :func:`regression_loss`. "auto" takes a pair for a span and (batch, 1) or (batch,)
            for a regression, where a KL is always zero: with λ1 = 0 nothing else would train the head.

    Raises:
        ValueError: weights that are negative, not finite or all zero; a temperature that is not positive;
            unknown names.
    """

    task: float = 1.0
    logit: float = 0.0
    token: float = 0.0
    temperature: float = 1.0
    distance: Distance = "euclidean"
    head: Head = "auto"

    def __post_init__(self) -> None:
        for name in ("task", "logit", "token"):
            weight = getattr(self, name)
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight {name} is {weight}; it must be zero or positive")
        if self.task == self.logit == self.token == 0:
            raise ValueError("the weights task, logit and token are all 0; at least one must be positive")
        require_temperature(self.temperature)
        for name, value, known in (("distance", self.distance, Distance), ("head", self.head, Head)):
            if value not in get_args(known):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(known))}")

    @classmethod
    def preset(cls, name: str) -> "DistillationLoss":
        """The ZipLM paper's weights for "squad", "glue" or "gpt2"; ``dataclasses.replace`` changes some.

        Raises:
            ValueError: another name.
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
            student: the student's outputs.
            teacher: the teacher's, for the same batch; not needed when only the task counts.
            task_loss: a scalar, as the student's own loss function gives it.
            mask: (batch, tokens), 1 or True for tokens, 0 for padding. It applies to the hidden states,
                to spans and to logits (batch, tokens, classes), but not to logits (batch, classes).
            layers: the layers that are not pruned away, see :func:`token_loss`.

        Raises:
            ValueError: a part with a weight lacks its inputs, or they are bad; see the functions.
        """
        teacher = teacher or Outputs()
        task = logit = token = None
        if self.task:
            if task_loss is None:
                raise _missing("task", "task_loss")
            task = _usable_task_loss(task_loss)
        if self.logit:
            if student.logits is None or teacher.logits is None:
                raise _missing("logit", "logits of both models")
            logit = self._logit(student.logits, teacher.logits, mask)
        if self.token:
            if student.hidden_states is None or teacher.hidden_states is None:
                raise _missing("token", "hidden_states of both models")
            token = token_loss(student.hidden_states, teacher.hidden_states, mask, layers, self.distance)
        weighted = [
            weight * part
            for weight, part in ((self.task, task), (self.logit, logit), (self.token, token))
            if part is not None
        ]
        total = torch.stack(weighted).sum()
        return LossParts(total, *(None if part is None else part.detach() for part in (task, logit, token)))

    def _logit(self, student: Logits, teacher: Logits, mask: Tensor | None) -> Tensor:
        head = _head_of(student) if self.head == "auto" else self.head
        if head == "span" and isinstance(student, tuple) and isinstance(teacher, tuple):
            return span_loss(student, teacher, self.temperature, mask)
        if head == "span" or isinstance(student, tuple) or isinstance(teacher, tuple):
            raise ValueError(
                f"head {head!r} cannot compare logits of types {type(student).__name__} and "
                f"{type(teacher).__name__}; a span is a pair of tensors, everything else one tensor"
            )
        if mask is not None and student.ndim != mask.ndim + 1:
            mask = None  # the logits are those of whole examples
        if head == "regression":
            return regression_loss(student, teacher, mask)
        return logit_loss(student, teacher, self.temperature, mask)


def _head_of(logits: Logits) -> Head:
    if isinstance(logits, tuple):
        return "span"
    return "regression" if logits.ndim == 1 or logits.shape[1:] == (1,) else "classes"


def _usable_task_loss(loss: Tensor) -> Tensor:
    """The task loss in float32 or better; refuses one that is not a finite scalar."""
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"task_loss is {loss!r}; it must be a tensor, as the student's loss function returns it"
        )
    if loss.numel() != 1 or not torch.isfinite(loss):
        what = loss.item() if loss.numel() == 1 else f"of shape {tuple(loss.shape)}"
        raise ValueError(f"task_loss is {what}; it must be one finite number")
    return loss.reshape(()).to(torch.promote_types(loss.dtype, torch.float32))


def _missing(part: str, needed: str) -> ValueError:
    return ValueError(f"the weight {part} is not 0, which needs {needed}; pass that, or set {part}=0")

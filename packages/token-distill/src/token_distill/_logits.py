"""Losses between the outputs of two heads: class logits, answer spans or regression outputs."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ._checks import (
    boolean_mask,
    require_finite,
    require_same,
    require_same_last_size,
    require_temperature,
)
from ._rows import MEAN_SQUARE, Divergence, Rows, mean_over_rows


def logit_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Temperature-scaled KL divergence between the class distributions of teacher and student.

    This is T² KL(teacher ‖ student) over the last dimension, averaged over the other dimensions. The factor
    T² keeps the size of the gradient independent of the temperature T (Hinton et al., 2015).

    Args:
        student_logits: (batch, classes) or (batch, tokens, classes), any floating point dtype.
        teacher_logits: tensor of the same shape; its dtype may differ. It receives no gradient. A logit of
            -inf excludes a class. The student's logit must be finite wherever the teacher's is.
        temperature: number by which both sets of logits are divided; positive, at most 10000.
        mask: (batch,) or (batch, tokens), 1 or True for the examples or tokens to average over. The others
            are ignored and may hold nan. None averages over all.

    Returns:
        A scalar: float64 if either input is, otherwise float32.

    Raises:
        ValueError: the shapes differ, there are fewer than two classes, the temperature is out of range, the
            mask keeps nothing, or the logits hold nan.
    """
    require_same_last_size(
        student_logits,
        teacher_logits,
        "logits",
        "numbers of classes",
        "use a teacher with the same classes, or select the classes that both have",
    )
    require_same(student_logits, teacher_logits, "logits")
    require_temperature(temperature)
    if student_logits.ndim < 2:
        raise ValueError(f"logits: shape {tuple(student_logits.shape)} must be (batch, ..., classes)")
    if student_logits.shape[-1] == 1:
        raise ValueError("logits: with a single class the KL is always zero; use regression_loss")
    rows = Rows.kept(mask, student_logits, "logits")
    loss = mean_over_rows(student_logits, teacher_logits, rows, _kl(temperature))
    require_finite(loss, student_logits, teacher_logits, "logits", mask)
    return loss


def span_loss(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    temperature: float = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Temperature-scaled KL divergence for question answering, averaged over answer start and answer end.

    The positions of the sequence are the classes of two distributions: one for the first token of the answer,
    the other for its last. The loss is the mean of the two divergences.

    Args:
        student: pair of start and end logits, each (batch, positions), any floating point dtype.
        teacher: pair of the same shapes; dtypes may differ. It receives no gradient.
        temperature: as in :func:`logit_loss`.
        mask: (batch, positions), 1 or True for positions that may be part of an answer. The others get
            probability zero, so padding a batch does not change the loss. None allows all positions.

    Returns:
        A scalar: float64 if any input is, otherwise float32.

    Raises:
        ValueError: the shapes differ, the temperature is out of range, the mask keeps no position of some
            example, or the logits hold nan.
    """
    if len(student) != 2 or len(teacher) != 2:
        raise ValueError(
            f"a span is a pair of start and end logits; got {len(student)} and {len(teacher)} tensors"
        )
    losses = []
    for name, ours, theirs in zip(("start logits", "end logits"), student, teacher, strict=True):
        require_same(ours, theirs, name)
        require_temperature(temperature)
        if ours.ndim != 2:
            raise ValueError(f"{name}: shape {tuple(ours.shape)} must be (batch, positions)")
        rows = Rows.kept(None, ours, name)
        loss = mean_over_rows(
            _without_padding(ours, mask, name), _without_padding(theirs, mask, name), rows, _kl(temperature)
        )
        require_finite(loss, ours, theirs, name, mask)
        losses.append(loss)
    start, end = losses
    return (start + end) / 2


def regression_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean squared error between the outputs of two regression heads.

    Use it for heads with a single output, where the KL of :func:`logit_loss` is always zero.

    Args:
        student: (batch,), (batch, outputs) or (batch, tokens, outputs), any floating point dtype.
        teacher: tensor of the same shape; its dtype may differ. It receives no gradient.
        mask: (batch,) or (batch, tokens), as in :func:`logit_loss`.

    Returns:
        A scalar: float64 if either input is, otherwise float32.

    Raises:
        ValueError: the shapes differ, the mask keeps nothing, or the inputs hold nan.
    """
    require_same(student, teacher, "regression outputs")
    if student.ndim < 2:
        student, teacher = student.reshape(-1, 1), teacher.reshape(-1, 1)
    rows = Rows.kept(mask, student, "regression outputs")
    loss = mean_over_rows(student, teacher, rows, MEAN_SQUARE)
    require_finite(loss, student, teacher, "regression outputs", mask)
    return loss


def _without_padding(logits: Tensor, mask: Tensor | None, name: str) -> Tensor:
    """Return logits (batch, positions) with -inf where the mask is 0; raise if an example has no position."""
    if mask is None:
        return logits
    padding = ~boolean_mask(mask, logits.shape, name).to(logits.device)
    if torch.any(empty := padding.all(dim=1)):
        example = int(empty.nonzero()[0])
        raise ValueError(f"{name}: the mask keeps no position of example {example}; drop that example")
    return logits.masked_fill(padding, -torch.inf)


def _kl(temperature: float) -> Divergence:
    return Divergence(
        partial(_kl_value, temperature=temperature), partial(_kl_gradient, temperature=temperature)
    )


def _kl_value(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(teacher ‖ student) of each row, as the sum of p (q/p − 1 − log q/p) over the classes.

    Here p are the teacher's probabilities and q the student's. Since both sum to 1, this equals the usual sum
    of −p log q/p, but none of its terms is negative. The terms of the usual sum nearly cancel when p and q
    are close, and T² then amplifies the rounding error of float32.
    """
    ours = F.log_softmax(student / temperature, dim=-1)
    theirs = F.log_softmax(teacher / temperature, dim=-1)
    gap = (ours - theirs).nan_to_num_(
        nan=0.0, posinf=1.0, neginf=-torch.inf
    )  # log q/p, but finite where p = 0
    p, q = theirs.exp_(), ours.exp_()
    # q/p may overflow where p is tiny. So q/p is capped at e before it is multiplied by p, and the remainder
    # q − e·p is added afterwards. Choosing between two formulas with torch.where would take twice the time.
    excess = q.sub_(p, alpha=math.e).clamp_(min=0)
    terms = torch.expm1(gap.clamp(max=1)).sub_(gap).mul_(p).add_(excess)
    return terms.clamp_(min=0).sum(dim=-1).mul_(temperature**2)  # rounding in expm1 may give a tiny negative


def _kl_gradient(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T (softmax(student / T) − softmax(teacher / T)), the gradient of :func:`_kl_value`."""
    ours = F.softmax(student / temperature, dim=-1)
    return ours.sub_(F.softmax(teacher / temperature, dim=-1)).mul_(temperature)

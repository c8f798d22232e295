"""Losses on what the models' heads say: classes, positions of a span, or one number."""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ._checks import boolean_mask, require_finite, require_same, require_temperature
from ._rows import MEAN_SQUARE, Divergence, Rows, mean_over_rows


def logit_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """KL(teacher ‖ student) over the last dimension at a temperature, times temperature², mean over the rest.

    The factor keeps the size of the gradient independent of the temperature (Hinton et al., 2015).

    Args:
        student_logits: (batch, classes), or (batch, tokens, classes); any floating point dtype.
        teacher_logits: the same shape; its dtype may differ. No gradient flows to it. A logit of -inf
            excludes a class; where the teacher's is finite, the student's must be.
        temperature: positive, at most 10000; both sets of logits are divided by it.
        mask: (batch,) or (batch, tokens), 1 or True for what counts. The mean is over those; the rest is not
            looked at. Without a mask, over all.

    Returns:
        A scalar, float32 or, if the logits are, float64.

    Raises:
        ValueError: shapes that differ, fewer than two classes, a temperature out of range, nothing left
            by the mask, nan.
    """
    require_same(student_logits, teacher_logits, "logits")
    require_temperature(temperature)
    if student_logits.ndim < 2:
        raise ValueError(f"logits: shape {tuple(student_logits.shape)} must be (batch, ..., classes)")
    if student_logits.shape[-1] == 1:
        raise ValueError("logits: over one class every KL is zero and teaches nothing; use regression_loss")
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
    """KL for question answering: positions are the classes, once for the answer's start and once for its end.

    Args:
        student: start and end logits, each (batch, positions).
        teacher: the same; no gradient flows to them.
        temperature: as in :func:`logit_loss`.
        mask: (batch, positions), 1 or True for positions an answer may have; the others get probability
            zero, so padding a batch changes nothing.

    Returns:
        A scalar: the mean of the start's and the end's KL, each a mean over the examples.

    Raises:
        ValueError: as :func:`logit_loss`; also an example that has no position left.
    """
    if len(student) != 2 or len(teacher) != 2:
        raise ValueError(f"a span is a start and an end; got {len(student)} and {len(teacher)} tensors")
    halves = []
    for name, ours, theirs in zip(("start logits", "end logits"), student, teacher, strict=True):
        require_same(ours, theirs, name)
        require_temperature(temperature)
        if ours.ndim != 2:
            raise ValueError(f"{name}: shape {tuple(ours.shape)} must be (batch, positions)")
        rows = Rows.kept(None, ours, name)
        half = mean_over_rows(_barred(ours, mask, name), _barred(theirs, mask, name), rows, _kl(temperature))
        require_finite(half, ours, theirs, name, mask)
        halves.append(half)
    start, end = halves
    return (start + end) / 2


def regression_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean squared error between the outputs of two regression heads, where a KL would be zero.

    Args:
        student: (batch,), (batch, outputs) or (batch, tokens, outputs); any floating point dtype.
        teacher: the same shape; no gradient flows to it.
        mask: (batch,) or (batch, tokens), as in :func:`logit_loss`.

    Returns:
        A scalar, float32 or, if either input is, float64.

    Raises:
        ValueError: shapes that differ, nothing left by the mask, nan.
    """
    require_same(student, teacher, "regression outputs")
    if student.ndim < 2:
        student, teacher = student.reshape(-1, 1), teacher.reshape(-1, 1)
    rows = Rows.kept(mask, student, "regression outputs")
    loss = mean_over_rows(student, teacher, rows, MEAN_SQUARE)
    require_finite(loss, student, teacher, "regression outputs", mask)
    return loss


def _barred(logits: Tensor, mask: Tensor | None, name: str) -> Tensor:
    """The logits (batch, positions) with -inf where the mask is 0; refuses an example with nothing left."""
    if mask is None:
        return logits
    padding = ~boolean_mask(mask, logits.shape, name).to(logits.device)
    if torch.any(empty := padding.all(dim=1)):
        example = int(empty.nonzero()[0])
        raise ValueError(f"{name}: the mask leaves no position of example {example}; drop that example")
    return logits.masked_fill(padding, -torch.inf)


def _kl(temperature: float) -> Divergence:
    return Divergence(
        partial(_kl_value, temperature=temperature), partial(_kl_gradient, temperature=temperature)
    )


def _kl_value(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student) of each row, as a sum of p (q/p − 1 − log q/p) over the classes.

    p are the teacher's probabilities, q the student's. Because both sum to 1, that is the sum of −p log q/p,
    but no term is negative. Where p and q are alike, the terms of the usual sum nearly cancel, and T² scales
    up what float32 rounds away.
    """
    ours = F.log_softmax(student / temperature, dim=-1)
    theirs = F.log_softmax(teacher / temperature, dim=-1)
    gap = (ours - theirs).nan_to_num_(nan=0.0, posinf=1.0, neginf=-torch.inf)  # log q/p; finite where p = 0
    p, q = theirs.exp_(), ours.exp_()
    # q/p may overflow where p is tiny: it counts up to e here, and what q is above e p is added. (torch.where
    # would choose between two formulas, at twice the time.)
    above = q.sub_(p, alpha=math.e).clamp_(min=0)
    terms = torch.expm1(gap.clamp(max=1)).sub_(gap).mul_(p).add_(above)
    return terms.clamp_(min=0).sum(dim=-1).mul_(temperature**2)  # expm1 may be off by a rounding


def _kl_gradient(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T (softmax(student / T) − softmax(teacher / T)): one T of T² is spent on the inner derivative."""
    ours = F.softmax(student / temperature, dim=-1)
    return ours.sub_(F.softmax(teacher / temperature, dim=-1)).mul_(temperature)

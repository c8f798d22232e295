"""Cosine distance between vectors, and the loss between pooled embeddings that it makes."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ._checks import boolean_mask, require_finite, require_same, require_same_last_size
from ._rows import Divergence, Rows, at_least_float32, mean_over_rows

Pooling = Literal["mean", "cls"]


def cosine_loss(
    student: Tensor, teacher: Tensor, mask: Tensor | None = None, pooling: Pooling | None = "mean"
) -> Tensor:
    """Mean cosine distance 1 − cos(student, teacher) between the embeddings of a batch.

    It trains sentence embedders without labels: the embedding of a text, usually the mean of its tokens' last
    hidden vectors, is compared by cosine, so its length does not matter.

    Args:
        student: last hidden states (batch, tokens, hidden), or embeddings (batch, hidden) if `pooling` is
            None. Any floating point dtype.
        teacher: tensor of the same shape; its dtype may differ. It receives no gradient.
        mask: (batch, tokens), 1 or True for tokens, 0 for padding, which is left out of the mean and may hold
            nan. For embeddings, (batch,): the examples to average over. None keeps all.
        pooling: "mean" for the mean over the tokens of each example, "cls" for the first token, None if the
            tensors are embeddings already.

    Returns:
        A scalar: float64 if either input is, otherwise float32. It can be differentiated once. If an
        embedding is zero, its distance is 1, with gradient zero.

    Raises:
        ValueError: the shapes differ or do not fit the pooling, the pooling is unknown, the mask keeps no
            token of some example, or the inputs hold nan.
    """
    what = "embeddings" if pooling is None else "last hidden states"
    if pooling not in (None, *get_args(Pooling)):
        raise ValueError(f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))} or None")
    require_same_last_size(
        student, teacher, what, "hidden sizes", "project one of them to the size of the other first"
    )
    require_same(student, teacher, what)
    if student.ndim != (2 if pooling is None else 3):
        needed = "(batch, hidden)" if pooling is None else "(batch, tokens, hidden)"
        raise ValueError(f"{what}: shape {tuple(student.shape)} must be {needed} for pooling {pooling!r}")
    if pooling is None:
        ours, theirs, rows = student, teacher, Rows.kept(mask, student, what)
    else:
        kept = None if mask is None else _tokens_kept(mask, student, what)
        dtype = at_least_float32(student, teacher)
        ours = _pooled(student, kept, pooling, dtype)
        with torch.no_grad():
            theirs = _pooled(teacher, kept, pooling, dtype)
        rows = Rows.kept(None, ours, what)
    loss = mean_over_rows(ours, theirs, rows, COSINE)
    require_finite(loss, student, teacher, what, mask)
    return loss


def _tokens_kept(mask: Tensor, like: Tensor, what: str) -> Tensor:
    """Return the mask as booleans (batch, tokens); raise if it keeps no token of some example."""
    kept = boolean_mask(mask, like.shape[:-1], what).to(like.device)
    empty = ~kept.any(dim=1)
    if empty.any():
        example = int(empty.nonzero()[0])
        raise ValueError(f"{what}: the mask keeps no token of example {example}; drop that example")
    return kept


def _pooled(hidden: Tensor, kept: Tensor | None, pooling: Pooling, dtype: torch.dtype) -> Tensor:
    """Return the embeddings (batch, hidden) of hidden states (batch, tokens, hidden)."""
    if pooling == "cls":
        return hidden[:, 0].to(dtype)
    if kept is None:
        return hidden.mean(dim=1, dtype=dtype)
    # Padding is filled rather than multiplied by 0, because it may hold nan.
    tokens = hidden.masked_fill(~kept[..., None], 0.0)
    return tokens.sum(dim=1, dtype=dtype) / kept.sum(dim=1, keepdim=True)


def _value(student: Tensor, teacher: Tensor) -> Tensor:
    """Return 1 − cos as half the squared distance of the directions, which loses no digits near zero."""
    s, t, _, undefined = _directions(student, teacher)
    return (s - t).square_().sum(dim=-1).mul_(0.5) + undefined[..., 0]


def _gradient(student: Tensor, teacher: Tensor) -> Tensor:
    s, t, length, _ = _directions(student, teacher)
    along = (s * t).sum(dim=-1, keepdim=True)
    return (s * along).sub_(t).div_(length)  # −(t − s (s·t)) / ‖student‖


def _directions(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both vectors scaled to unit length, the student's length, and where either vector is zero.

    There, both directions are zero and the length is 1.
    """
    ours = torch.linalg.vector_norm(student, dim=-1, keepdim=True)
    theirs = torch.linalg.vector_norm(teacher, dim=-1, keepdim=True)
    undefined = (ours == 0) | (theirs == 0)
    ours = ours.masked_fill(undefined, 1.0)
    theirs = theirs.masked_fill(undefined, 1.0)
    s, t = (student / ours).masked_fill(undefined, 0.0), (teacher / theirs).masked_fill(undefined, 0.0)
    return s, t, ours, undefined


COSINE = Divergence(_value, _gradient)

"""The layer-wise token loss: how far the student's hidden vectors are from the teacher's."""

from collections.abc import Sequence
from operator import index
from typing import Literal, get_args

import torch
from torch import Tensor

from ._checks import require_finite, require_same
from ._rows import MEAN_SQUARE, Divergence, Rows, mean_over_rows

Distance = Literal["euclidean", "mse", "cosine"]


def token_loss(
    student_hidden: Sequence[Tensor],
    teacher_hidden: Sequence[Tensor],
    mask: Tensor | None,
    layers: Sequence[int] | None = None,
    distance: Distance = "euclidean",
) -> Tensor:
    """Distance between the hidden vectors of student and teacher: mean over tokens, then over layers.

    With the Euclidean distance this is L_token of the ZipLM paper (section 3.3, "Layer-wise Token
    Distillation"). Besides the gradients, it needs a few megabytes on a CPU, whatever the number of layers.

    Args:
        student_hidden: the embeddings, then the output of each layer, each (batch, tokens, hidden), as
            models of transformers give them: 13 tensors for 12 layers. Any floating point dtype.
        teacher_hidden: the same number and shapes; dtypes may differ. No gradient flows to them.
        mask: (batch, tokens), 1 or True for tokens, 0 for padding, which is not looked at; None if there
            is none.
        layers: the layers that are not pruned away; a layer is only when both of its modules are gone.
            Layer k's output is ``hidden[k + 1]``; the embeddings are no layer. None means all.
        distance: "euclidean" ‖s − t‖, whose slope is taken to be zero where s equals t; "mse" ‖s − t‖² /
            hidden; "cosine" 1 − cos(s, t), which is 1 with no slope where a vector is zero.

    Returns:
        A scalar, float32 or, if the hidden states are, float64. It can be differentiated once.

    Raises:
        ValueError: numbers of layers or shapes that differ, layers that do not exist, none left, all tokens
            masked, an unknown distance, nan.
    """
    if distance not in _DISTANCES:
        raise ValueError(f"distance is {distance!r}; it must be one of {', '.join(get_args(Distance))}")
    if len(student_hidden) != len(teacher_hidden):
        raise ValueError(
            f"hidden states: the student has {len(student_hidden)}, the teacher {len(teacher_hidden)}; "
            "a pruned student keeps the teacher's number of layers, pass those that are left as `layers`"
        )
    chosen = _chosen(layers, len(student_hidden) - 1)
    pairs = [(student_hidden[layer + 1], teacher_hidden[layer + 1]) for layer in chosen]
    names = [f"hidden states of layer {layer}" for layer in chosen]
    first = pairs[0][0]
    for (student, teacher), name in zip(pairs, names, strict=True):
        require_same(student, teacher, name)
        if student.ndim < 2 or student.shape != first.shape:
            raise ValueError(
                f"{name}: shape {tuple(student.shape)} must be (batch, tokens, hidden), as in all layers; "
                f"the first has {tuple(first.shape)}"
            )
    rows = Rows.kept(mask, first, "hidden states")
    losses = [mean_over_rows(student, teacher, rows, _DISTANCES[distance]) for student, teacher in pairs]
    loss = torch.stack(losses).mean()
    if not torch.isfinite(loss):  # looked at once, not for each layer: an accelerator has to wait for it
        for value, (student, teacher), name in zip(losses, pairs, names, strict=True):
            require_finite(value, student, teacher, name, mask)
    return loss


def _chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    """The layers' indices, all of them by default; refuses those that do not exist or come twice."""
    if count < 1:
        raise ValueError(
            f"hidden states: {count + 1} given; the embeddings and at least one layer are needed"
        )
    if layers is None:
        return list(range(count))
    if any(isinstance(layer, bool) or getattr(layer, "dtype", None) == torch.bool for layer in layers):
        raise ValueError(
            f"layers is {list(layers)}; give the numbers of the layers that are left, not yes or no"
        )
    chosen = [index(layer) for layer in layers]
    if not chosen:
        raise ValueError("layers is empty: every layer is pruned away; give the token loss no weight")
    for layer in chosen:
        if not 0 <= layer < count:
            raise ValueError(
                f"layers holds {layer}; with {count + 1} hidden states it must be from 0 to {count - 1}"
            )
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"layers is {chosen}; each layer may be there once")
    return chosen


def _euclidean(student: Tensor, teacher: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(student - teacher, dim=-1)
    return length


def _euclidean_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    difference = student - teacher
    length = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    return difference.div_(length.masked_fill_(length == 0, 1.0))  # 0 / 1 where student equals teacher


def _cosine(student: Tensor, teacher: Tensor) -> Tensor:
    s, t, _ = _directions(student, teacher)
    return 1 - (s * t).sum(dim=-1)


def _cosine_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    s, t, length = _directions(student, teacher)
    along = (s * t).sum(dim=-1, keepdim=True)
    return (s * along).sub_(t).div_(length)  # −(t − s (s·t)) / ‖student‖


def _directions(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors, and the student's lengths; a zero vector makes both zero, and its length one."""
    ours = torch.linalg.vector_norm(student, dim=-1, keepdim=True)
    theirs = torch.linalg.vector_norm(teacher, dim=-1, keepdim=True)
    aimless = (ours == 0) | (theirs == 0)
    ours = ours.masked_fill(aimless, 1.0)
    theirs = theirs.masked_fill(aimless, 1.0)
    return (student / ours).masked_fill(aimless, 0.0), (teacher / theirs).masked_fill(aimless, 0.0), ours


_DISTANCES: dict[str, Divergence] = {
    "euclidean": Divergence(_euclidean, _euclidean_gradient),
    "mse": MEAN_SQUARE,
    "cosine": Divergence(_cosine, _cosine_gradient),
}

"""Layer-wise token loss: the distance between the hidden vectors of student and teacher."""

from collections.abc import Sequence
from operator import index
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ._checks import require_finite, require_same, require_same_last_size
from ._cosine import COSINE
from ._rows import MEAN_SQUARE, Divergence, Rows, mean_over_rows

Distance = Literal["euclidean", "mse", "cosine"]


def token_loss(
    student_hidden: Sequence[Tensor],
    teacher_hidden: Sequence[Tensor],
    mask: Tensor | None,
    layers: Sequence[int] | None = None,
    distance: Distance = "euclidean",
) -> Tensor:
    """Mean distance between the hidden vectors of student and teacher, over tokens and then over layers.

    With the Euclidean distance this is L_token of the ZipLM paper (section 3.3, "Layer-wise Token
    Distillation"). On a CPU, it needs a few megabytes besides the gradients, whatever the number of layers.

    Args:
        student_hidden: the embeddings, then the output of each layer, each (batch, tokens, hidden), as
            Hugging Face transformers models return them: 13 tensors for 12 layers. Any floating point dtype.
        teacher_hidden: as many tensors of the same shapes; dtypes may differ. They receive no gradient. If
            the hidden sizes differ, project one of them to the size of the other first.
        mask: (batch, tokens), 1 or True for tokens, 0 for padding, which is ignored. None if there is no
            padding.
        layers: indices of the layers to compare: those that are not pruned away. A layer is pruned away only
            if both its attention and its FFN are gone. The output of layer k is ``hidden[k + 1]``; the
            embeddings are not a layer. None compares all layers.
        distance: "euclidean", ‖s − t‖, with gradient zero where s equals t; "mse", ‖s − t‖² / hidden; or
            "cosine", 1 − cos(s, t), which is 1 with gradient zero where either vector is zero.

    Returns:
        A scalar: float64 if any compared tensor is, otherwise float32. It can be differentiated once.

    Raises:
        ValueError: the models differ in the number of hidden states or in their shapes, `layers` is empty or
            names a layer that does not exist, the mask keeps no token, the distance is unknown, or the hidden
            states hold nan.
    """
    if distance not in _DISTANCES:
        raise ValueError(f"distance is {distance!r}; it must be one of {', '.join(get_args(Distance))}")
    if len(student_hidden) != len(teacher_hidden):
        raise ValueError(
            f"hidden states: the student has {len(student_hidden)}, the teacher {len(teacher_hidden)}; "
            "a pruned student must return as many as its teacher and name its remaining layers in `layers`"
        )
    compared = [
        _Layer(f"hidden states of layer {k}", student_hidden[k + 1], teacher_hidden[k + 1])
        for k in _checked_layers(layers, len(student_hidden) - 1)
    ]
    _require_equal_shapes(compared)
    rows = Rows.kept(mask, compared[0].student, "hidden states")
    losses = [mean_over_rows(layer.student, layer.teacher, rows, _DISTANCES[distance]) for layer in compared]
    loss = torch.stack(losses).mean()
    if not torch.isfinite(loss):  # checked once and not per layer: every check makes an accelerator wait
        for layer, value in zip(compared, losses, strict=True):
            require_finite(value, layer.student, layer.teacher, layer.name, mask)
    return loss


class _Layer(NamedTuple):
    """Hidden states of both models after one layer, each (batch, tokens, hidden)."""

    name: str
    student: Tensor
    teacher: Tensor


def _checked_layers(layers: Sequence[int] | None, count: int) -> list[int]:
    """Return the indices of the layers to compare, by default all; raise if some are invalid or repeated."""
    if count < 1:
        raise ValueError(
            f"hidden states: {count + 1} given; the embeddings and at least one layer are needed"
        )
    if layers is None:
        return list(range(count))
    if any(isinstance(layer, bool) or getattr(layer, "dtype", None) == torch.bool for layer in layers):
        raise ValueError(
            f"layers is {list(layers)}; give the indices of the layers that are left, not booleans"
        )
    indices = [index(layer) for layer in layers]
    if not indices:
        raise ValueError(
            "layers is empty; if every layer is pruned away, set the weight of the token loss to 0"
        )
    for layer in indices:
        if not 0 <= layer < count:
            raise ValueError(
                f"layers holds {layer}; with {count + 1} hidden states it must be from 0 to {count - 1}"
            )
    if len(set(indices)) != len(indices):
        raise ValueError(f"layers is {indices}; name each layer only once")
    return indices


def _require_equal_shapes(layers: Sequence[_Layer]) -> None:
    """Raise unless all hidden states have one shape, the same in all layers and both models."""
    first = layers[0].student
    for name, student, teacher in layers:
        require_same_last_size(
            student,
            teacher,
            name,
            "hidden sizes",
            "project one of them to the size of the other first, for example by a torch.nn.Linear that is "
            "trained with the student, or use a teacher of the same hidden size",
        )
        require_same(student, teacher, name)
        if student.ndim < 2 or student.shape != first.shape:
            raise ValueError(
                f"{name}: the shape is {tuple(student.shape)}; it must be (batch, tokens, hidden) and equal "
                f"that of the first layer compared, {tuple(first.shape)}"
            )


def _euclidean(student: Tensor, teacher: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(student - teacher, dim=-1)
    return length


def _euclidean_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    difference = student - teacher
    length = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    return difference.div_(length.masked_fill_(length == 0, 1.0))  # 0 where student equals teacher


_DISTANCES: dict[str, Divergence] = {
    "euclidean": Divergence(_euclidean, _euclidean_gradient),
    "mse": MEAN_SQUARE,
    "cosine": COSINE,
}

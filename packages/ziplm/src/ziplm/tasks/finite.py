"""Values that are not finite are errors: what is computed from them would mean nothing."""

import math
from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from ziplm.errors import NotFinite
from ziplm.tasks.heads import Batch, Head

HINT = "check the weights of the model, or load it in float32"


def require_finite(what: str, values: Iterable[torch.Tensor]) -> None:
    """Raise NotFinite if a tensor holds nan or an infinity.

    Args:
        what: what the tensors hold, in the plural, for the error message.
        values: the tensors.
    """
    if not all(bool(value.isfinite().all()) for value in values):
        raise NotFinite(f"{what} are not finite", HINT)


def finite_outputs(head: Head, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return the outputs of a model's head for a batch; raise NotFinite if they are not finite."""
    made = head.outputs(model, batch)
    require_finite("the model's outputs", [made])
    return made


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics; raise NotFinite if any of them is not finite, so that it is never recorded."""
    if not all(math.isfinite(value) for value in metrics.values()):
        raise NotFinite(
            f"the model's outputs are not finite: {', '.join(f'{k} {v}' for k, v in metrics.items())}", HINT
        )
    return metrics

"""Model outputs that the losses read: logits and hidden states."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Logits = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)  # comparing tensors does not give a single truth value
class Outputs:
    """A model's logits and hidden states; either may be None if no loss uses it.

    Attributes:
        logits: (batch, classes) or (batch, tokens, classes) for classification; (batch, 1) or (batch,) for
            regression; for question answering the pair of start and end logits, each (batch, tokens).
        hidden_states: the embeddings, then the output of each layer, each (batch, tokens, hidden).
    """

    logits: Logits | None = None
    hidden_states: Sequence[Tensor] | None = None

    def __repr__(self) -> str:
        """Return the shapes instead of the values, which can fill many pages."""
        return f"Outputs(logits={_shapes(self.logits)}, hidden_states={_shapes(self.hidden_states)})"

    @classmethod
    def of(cls, output: Any) -> "Outputs":
        """Read the output of a module.

        Args:
            output: a tensor of logits, or an object or mapping with the names that transformers uses:
                ``logits``, or ``start_logits`` and ``end_logits``; and ``hidden_states``.

        Raises:
            TypeError: the output has neither logits nor hidden states, or only one of ``start_logits`` and
                ``end_logits``.
        """
        if isinstance(output, cls):
            return output
        if isinstance(output, Tensor):
            return cls(output)
        get: Callable[[str], Any] = (
            output.get if isinstance(output, Mapping) else lambda name: getattr(output, name, None)
        )
        logits, hidden_states = get("logits"), get("hidden_states")
        start, end = get("start_logits"), get("end_logits")
        if (start is None) != (end is None):
            present, missing = ("end", "start") if start is None else ("start", "end")
            raise TypeError(
                f"{type(output).__name__} has {present}_logits but no {missing}_logits; a span needs both"
            )
        if start is not None:
            logits = (start, end)
        if logits is None and hidden_states is None:
            raise TypeError(
                f"{type(output).__name__} has no logits and no hidden_states; return a tensor or Outputs(...)"
            )
        return cls(logits, hidden_states)


def _shapes(tensors: Tensor | Sequence[Tensor] | None) -> str:
    """Format the shapes of tensors as text; equal shapes are shown once, with their number."""
    if tensors is None:
        return "None"
    if isinstance(tensors, Tensor):
        return str(tuple(tensors.shape))
    counts = Counter(tuple(tensor.shape) for tensor in tensors)
    return " + ".join(f"{count} x {shape}" for shape, count in counts.items())

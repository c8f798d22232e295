"""What a loss takes from a model: logits and hidden states, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Logits = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Outputs:
    """A model's logits and hidden states; what no loss asks for may be missing.

    Attributes:
        logits: (batch, classes), (batch, tokens, classes), (batch, 1) or (batch,) of a regression, or for
            question answering the pair of start and end logits, each (batch, tokens).
        hidden_states: the embeddings, then each layer's output, each (batch, tokens, hidden).
    """

    logits: Logits | None = None
    hidden_states: Sequence[Tensor] | None = None

    @classmethod
    def of(cls, output: Any) -> "Outputs":
        """Read a module's output: a tensor of logits, or an object or mapping with names as in transformers.

        The names are ``logits``, or ``start_logits`` and ``end_logits``, and ``hidden_states``.

        Raises:
            TypeError: none of these is there, or one half of a span.
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
            there, missing = ("end", "start") if start is None else ("start", "end")
            raise TypeError(
                f"{type(output).__name__} has {there}_logits, no {missing}_logits; a span needs both"
            )
        if start is not None:
            logits = (start, end)
        if logits is None and hidden_states is None:
            raise TypeError(
                f"{type(output).__name__} has no logits, no hidden_states; return a tensor or Outputs(...)"
            )
        return cls(logits, hidden_states)

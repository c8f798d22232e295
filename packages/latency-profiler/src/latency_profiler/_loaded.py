"""Exported models in an engine: called with arrays or tensors, by position or by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latency_profiler._callables import tensors_in
from latency_profiler._errors import OptionError

Array = NDArray[Any]


class LoadedModel(ABC):
    """Exported model that is loaded into an engine with a fixed number of threads.

    Attributes:
        engine: Name of the engine.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        input_shapes: Shape of each input by name; None where a dimension may have any size.
        threads: Number of threads that compute; one thread is the calling one.
    """

    def __init__(
        self,
        engine: str,
        input_shapes: Mapping[str, Sequence[int | None]],
        outputs: Sequence[str],
        threads: int,
    ) -> None:
        self.engine = engine
        self.inputs = tuple(input_shapes)
        self.input_shapes = {name: tuple(shape) for name, shape in input_shapes.items()}
        self.outputs = tuple(outputs)
        self.threads = threads

    def __call__(self, *values: Any) -> tuple[Array, ...]:
        """Run the model on arrays or CPU tensors, one for each input in the order of `inputs`."""
        if len(values) != len(self.inputs):
            raise OptionError(
                f"the model has {len(self.inputs)} inputs, and {len(values)} were given",
                f"give {', '.join(self.inputs)}",
            )
        return tuple(self._infer([as_array(value) for value in values]))

    def run(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model on arrays or CPU tensors by input name, and return its outputs by name."""
        if unknown := [name for name in values if name not in self.inputs]:
            raise OptionError(
                f"the model has no input {unknown[0]!r:.60}", f"its inputs are {', '.join(self.inputs)}"
            )
        if missing := [name for name in self.inputs if name not in values]:
            raise OptionError(f"the input {missing[0]!r:.60} is missing", "give a value for every input")
        outputs = self(*(values[name] for name in self.inputs))
        return dict(zip(self.outputs, outputs, strict=True))

    @abstractmethod
    def _infer(self, arrays: list[Array]) -> Sequence[Array]:
        """Run the model on arrays in the order of `inputs`, and return those of `outputs`."""

    def __repr__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return f"<{self.engine}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}, {threads}>"


class TensorCall:
    """Callable from tensors to tensors that runs a loaded model; arguments of other types are ignored."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.threads = model.threads

    def __call__(self, *arguments: object) -> Any:
        """Return the output as a tensor, or as a tuple of tensors if there are several."""
        import torch

        outputs = tuple(torch.from_numpy(array) for array in self.model(*tensors_in(arguments)))
        return outputs[0] if len(outputs) == 1 else outputs


def as_array(value: Any) -> Array:
    """Return an array, or a tensor's values, as an array that is contiguous in memory."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    return np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)

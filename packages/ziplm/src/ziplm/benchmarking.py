"""Measure whole models against each other in a stated environment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from latency_profiler import (
    Comparison,
    CompileEngine,
    EagerEngine,
    Environment,
    check_half_precision,
    compare,
)
from transformers import PreTrainedModel

from ziplm.errors import UsageError, one_line

ENGINES = {"eager": EagerEngine, "compile": CompileEngine}


@dataclass(frozen=True)
class Setting:
    """Where and on what models are measured: full-length inputs, one forward pass of the whole model."""

    batch_size: int = 8
    sequence_length: int = 128
    threads: int | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    engine: Literal["eager", "compile"] = "eager"
    clock: Literal["wall", "cpu"] = "wall"
    regime: Literal["throughput", "latency", "generate"] = "throughput"
    prompt_lengths: tuple[int, ...] = ()
    new_tokens: int = 0

    def environment(self, attention: str | None) -> Environment:
        """What will stand beside the figures.

        Raises UsageError or OptionError if there is no such device, or if it cannot compute in the dtype.
        """
        try:
            check_half_precision(self.dtype, torch.device(self.device))
        except RuntimeError as error:
            raise UsageError(f"{self.device!r} is no device: {one_line(error)}", "use cpu or cuda") from None
        return Environment.current(
            self.device,
            self.dtype,
            self.batch_size,
            self.sequence_length,
            threads=self.threads,
            engine=self.engine,
            clock=self.clock,
            details={"attention": attention or "default"},
        )


def compare_models(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    rel_error: float = 0.01,
    max_seconds: float = 60.0,
    progress: Callable[[int, float], None] | None = None,
) -> Comparison:
    """Time a forward pass of each model on the same random tokens, in interleaved rounds.

    The first one is what the others are compared with: ``result.speedup(name)``. Models are moved to the
    setting's device and dtype.

    Raises:
        UsageError: if the sequence is longer than a model takes.
    """
    tokens = random_tokens(list(models.values()), setting)
    engine = ENGINES[setting.engine]()
    prepared = {}
    for name, model in models.items():
        model.to(device=setting.device, dtype=setting.dtype)  # type: ignore[call-arg]  # a decorator hides self
        prepared[name] = engine.prepare(model.eval(), (tokens,))
    return compare(
        prepared,
        (tokens,),
        rel_error=rel_error,
        max_seconds=max_seconds,
        clock=setting.clock,
        threads=setting.threads,
        progress=progress,
    )


def random_tokens(models: Sequence[PreTrainedModel], setting: Setting) -> torch.Tensor:
    """Tokens (batch, sequence) that all models know, always the same.

    Raises:
        UsageError: if the sequence is longer than a model takes.
    """
    longest = min(model.config.max_position_embeddings for model in models)
    if setting.sequence_length > longest:
        raise UsageError(
            f"a sequence of {setting.sequence_length} is too long for the model",
            f"it takes up to {longest} tokens",
        )
    vocabulary = min(model.config.vocab_size for model in models)
    shape = (setting.batch_size, setting.sequence_length)
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(setting.device)

"""Measure whole models against each other in a stated environment."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from latency_profiler import (
    Clock,
    Comparison,
    CompileEngine,
    CpuClock,
    DeviceClock,
    EagerEngine,
    Environment,
    WallClock,
    check_half_precision,
    compare,
)
from transformers import PreTrainedModel

from ziplm.errors import UsageError, one_line

ENGINES = {"eager": EagerEngine, "compile": CompileEngine}
REGIMES = ("throughput", "latency", "generate")
PROMPT_LENGTHS = (16, 64, 128)
TOP_K = 50


@dataclass(frozen=True)
class Setting:
    """Where and on what models are measured.

    Attributes:
        batch_size: inputs at a time; 0: 8 for throughput, 1 for latency and generate.
        sequence_length: of the inputs, for throughput.
        threads: of torch; None: as many as it has.
        device: such as cpu or cuda:0.
        dtype: of the models.
        engine: what runs them.
        clock: wall, or cpu on shared machines.
        regime: throughput is one forward pass over full-length inputs; latency the mean of those over inputs
            of several lengths; generate the median, over prompts of several lengths, of the whole generation
            of new tokens with a cache and Top-K sampling.
        prompt_lengths: of latency and generate; (): 16, 64 and 128, as far as the model takes them.
        new_tokens: that generate makes for each prompt.
    """

    batch_size: int = 0
    sequence_length: int = 128
    threads: int | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    engine: Literal["eager", "compile"] = "eager"
    clock: Literal["wall", "cpu"] = "wall"
    regime: Literal["throughput", "latency", "generate"] = "throughput"
    prompt_lengths: tuple[int, ...] = ()
    new_tokens: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_lengths", tuple(sorted(self.prompt_lengths)))
        if not self.batch_size:
            object.__setattr__(self, "batch_size", 8 if self.regime == "throughput" else 1)
        if self.regime == "generate" and self.engine != "eager":
            raise UsageError(f"generation is not measured with engine {self.engine}", "use engine eager")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the inputs of one measurement, rising."""
        return (self.sequence_length,) if self.regime == "throughput" else self.prompt_lengths

    @property
    def shares(self) -> dict[int, float]:
        """How much each length counts in the time of a measurement, which is the sum of these parts.

        The more tokens a prompt has, the longer it takes, for every model and module: a median over prompts
        is the time of the middle one, or the mean of the two middle ones.
        """
        counted = self.lengths
        if self.regime == "generate":
            middle = len(counted) // 2
            counted = counted[middle : middle + 1] if len(counted) % 2 else counted[middle - 1 : middle + 1]
        return {length: count / len(counted) for length, count in Counter(counted).items()}

    def for_models(self, models: Sequence[PreTrainedModel]) -> "Setting":
        """The same with the lengths that are measured, which all of the models take.

        Raises:
            UsageError: if a length, or a prompt with its new tokens, is too long for a model, or if a model
                cannot generate and should.
        """
        positions = min(model.config.max_position_embeddings for model in models)
        if self.regime == "throughput":
            if self.sequence_length > positions:
                raise UsageError(
                    f"a sequence of {self.sequence_length} is too long for the model",
                    f"it takes up to {positions} tokens",
                )
            return self
        new = 0
        if self.regime == "generate":
            new = self._checked_new_tokens(models, positions)
        longest = positions - new
        lengths = self.prompt_lengths or tuple(length for length in PROMPT_LENGTHS if length <= longest)
        lengths = lengths or (longest,)
        if lengths[0] < 1:
            raise UsageError(f"a prompt of {lengths[0]} tokens", "give whole numbers from 1 up")
        if lengths[-1] > longest:
            raise UsageError(
                f"a prompt of {lengths[-1]} tokens"
                + (f" and {new} new ones" if new else "")
                + " is too long",
                f"the model takes {positions}: give prompts of up to {longest}",
            )
        return replace(self, prompt_lengths=lengths)

    def _checked_new_tokens(self, models: Sequence[PreTrainedModel], positions: int) -> int:
        for model in models:
            if not model.can_generate():
                raise UsageError(
                    f"{type(model).__name__} cannot generate text",
                    "use --regime latency or throughput, or a decoder with a language head",
                )
        if not 1 <= self.new_tokens < positions:
            raise UsageError(
                f"{self.new_tokens} new tokens cannot be generated",
                f"with their prompt they must fit the model's {positions} positions: give fewer --new-tokens",
            )
        return self.new_tokens

    def environment(self, attention: str | None) -> Environment:
        """What will stand beside the figures.

        Raises UsageError or OptionError if there is no such device, or if it cannot compute in the dtype.
        """
        try:
            check_half_precision(self.dtype, torch.device(self.device))
        except RuntimeError as error:
            raise UsageError(f"{self.device!r} is no device: {one_line(error)}", "use cpu or cuda") from None
        details: dict[str, str | int | float] = {"attention": attention or "default", "regime": self.regime}
        if self.regime != "throughput":
            details["prompt lengths"] = " ".join(map(str, self.prompt_lengths)) or "default"
        if self.regime == "generate":
            details |= {"new tokens": self.new_tokens, "top k": TOP_K}
        return Environment.current(
            self.device,
            self.dtype,
            self.batch_size,
            self.sequence_length if self.regime == "throughput" else None,
            threads=self.threads,
            engine=self.engine,
            clock=self.clock,
            details=details,
        )

    def kept_seed(self) -> AbstractContextManager[None]:
        """While open, sampling may be seeded; afterwards the caller's random numbers go on as they were."""
        device = torch.device(self.device)
        return torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)


class PartsClock:
    """Times the parts of a call one by one; what it says of the call is their mean or median.

    Args:
        clock: what times a part.
        parts: of each call.
        figure: from seconds (calls, parts) and axis to seconds (calls,), such as numpy.mean.
    """

    def __init__(self, clock: Clock, parts: int, figure: Callable[..., Any]) -> None:
        self.name = clock.name
        self.now = clock.now
        self._clock, self._parts, self._figure = clock, parts, figure
        self._seconds: list[float] = []

    def call(self, functions: Sequence[Callable[..., object]]) -> Callable[..., None]:
        """A function that calls each of several functions with the argument in its place, as parts."""

        def run(*arguments: object) -> None:
            for function, argument in zip(functions, arguments, strict=True):
                self._seconds.append(self._clock.elapsed(functools.partial(function, argument)))

        return run

    def elapsed(self, run: Callable[[], object]) -> float:
        """Seconds of all calls that `run` makes."""
        self._seconds = []
        run()
        return float(self._figure(np.reshape(self._seconds, (-1, self._parts)), axis=1).sum())


def compare_models(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    rel_error: float = 0.01,
    max_seconds: float = 60.0,
    progress: Callable[[int, float], None] | None = None,
) -> Comparison:
    """Time each model on the same random tokens in the setting's regime, in interleaved rounds.

    The first one is what the others are compared with: ``result.speedup(name)``. Models are moved to the
    setting's device and dtype. With several lengths, each is run in every round; the time of a round is the
    mean over them, or for generation the median.

    Raises:
        UsageError: if the setting does not go with a model (`Setting.for_models`).
    """
    setting = setting.for_models(list(models.values()))
    inputs = tuple(random_tokens(list(models.values()), setting, length) for length in setting.lengths)
    prepared = {}
    for name, model in models.items():
        model.to(device=setting.device, dtype=setting.dtype)  # type: ignore[call-arg]  # a decorator hides self
        prepared[name] = [_whole_model(model.eval(), setting, tokens) for tokens in inputs]
    variants: dict[str, Callable[..., object]] = {name: calls[0] for name, calls in prepared.items()}
    clock: Clock | Literal["wall", "cpu"] = setting.clock
    if len(inputs) > 1:
        figure = np.median if setting.regime == "generate" else np.mean
        clock = PartsClock(_clock_of(setting), len(inputs), figure)
        variants = {name: clock.call(calls) for name, calls in prepared.items()}
    with setting.kept_seed():
        return compare(
            variants,
            inputs,
            rel_error=rel_error,
            max_seconds=max_seconds,
            clock=clock,
            threads=setting.threads,
            progress=progress,
        )


def _whole_model(
    model: PreTrainedModel, setting: Setting, tokens: torch.Tensor
) -> Callable[[torch.Tensor], object]:
    """What is timed of a model, on inputs of the shape of `tokens`: a forward pass, or a generation."""
    if setting.regime == "generate":
        return generation(model, setting.new_tokens)
    return ENGINES[setting.engine]().prepare(model, (tokens,))


def generation(model: PreTrainedModel, new_tokens: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """From prompts (batch, tokens) to those with so many tokens more, never fewer, and always the same.

    With a cache and Top-K sampling. The seed of torch is set by every call.
    """

    @torch.inference_mode()
    def generate(prompts: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        made: torch.Tensor = model.generate(  # type: ignore[operator]
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=TOP_K,
            num_beams=1,
            use_cache=True,
            min_new_tokens=new_tokens,  # the end of text is no reason to stop
            max_new_tokens=new_tokens,
            pad_token_id=0,  # never needed; silences a warning
        )
        return made

    return generate


def random_tokens(
    models: Sequence[PreTrainedModel], setting: Setting, length: int | None = None
) -> torch.Tensor:
    """Tokens (batch, length) that all models know, always the same; None: of the setting's sequence length.

    Raises:
        UsageError: if the sequence is longer than a model takes.
    """
    if length is None:
        length = replace(setting, regime="throughput").for_models(models).sequence_length
    vocabulary = min(model.config.vocab_size for model in models)
    shape = (setting.batch_size, length)
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(setting.device)


def _clock_of(setting: Setting) -> Clock:
    """What times one part of a call."""
    device = torch.device(setting.device)
    if setting.clock == "wall":
        return WallClock() if device.type == "cpu" else DeviceClock(device)
    if device.type != "cpu" or (setting.threads or torch.get_num_threads()) != 1:
        raise UsageError(
            "clock cpu counts the time of all threads, and of a CPU only", "use 1 thread or wall"
        )
    return CpuClock()

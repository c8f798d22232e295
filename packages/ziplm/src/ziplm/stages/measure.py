"""Measure whole models against each other in a stated setting."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    WallClock,
    WatchingClock,
    compare,
)
from transformers import PreTrainedModel

from ziplm.architectures.exported import ExportedModel
from ziplm.errors import UsageError
from ziplm.options.setting import Setting
from ziplm.stages.workload import (
    clock_of,
    dtype_of,
    generation,
    kept_seed,
    random_tokens,
    require_finite_outputs,
    setting_for,
)

MIN_ROUNDS = 30  # of a measurement that is reported
ENGINES = {"eager": EagerEngine, "compile": CompileEngine}


@dataclass(frozen=True)
class Measured:
    """A model measured beside the dense model, in interleaved rounds.

    Attributes:
        speedup: time of the dense model divided by the model's own.
        low: lower end of the speedup's 99 % interval.
        high: upper end of the speedup's 99 % interval.
        seconds: time of the model.
        dense_seconds: time of the dense model.
        over_eager: speedup over the dense model in eager torch, where another engine was measured.
        competition: share of the cores that other processes used meanwhile.
        doubt: how far that may have changed the speedup, relative to it; the interval includes it.
    """

    speedup: float
    low: float
    high: float
    seconds: float
    dense_seconds: float
    over_eager: float | None = None
    competition: float = 0.0
    doubt: float = 0.0

    def __str__(self) -> str:
        text = f"{self.speedup:.2f}x [{self.low:.2f}, {self.high:.2f}]"
        if not self.doubt:
            return text
        return f"{text}, while other processes used {self.competition:.0%} of the cores"

    @classmethod
    def of(cls, comparison: Comparison) -> "Measured":
        """Return the result of a comparison of "dense" and "small", and of "eager" if it has that."""
        ratio = comparison.speedup("small")
        seconds = comparison["small"].seconds
        over_eager = comparison["eager"].seconds / seconds if "eager" in comparison else None
        return cls(
            ratio.value,
            ratio.low,
            ratio.high,
            seconds,
            comparison["dense"].seconds,
            over_eager,
            comparison.competition,
            ratio.doubt,
        )


def measure(
    dense: PreTrainedModel,
    small: PreTrainedModel,
    setting: Setting,
    *,
    eager: PreTrainedModel | None = None,
    rel_error: float = 0.01,
    min_rounds: int = MIN_ROUNDS,
    max_seconds: float = 30.0,
    progress: Callable[[int, float], None] | None = None,
) -> Measured:
    """Measure the speedup of `small` over `dense`, both as the engine runs them (see `run_in_engine`).

    Args:
        dense: the dense model.
        small: the model to measure.
        setting: where and on which inputs to measure.
        eager: the dense model in torch, to be measured in the same rounds; None to leave it out.
        rel_error: relative error at which the measurement stops.
        min_rounds: number of rounds before which it does not stop, unless the time is up.
        max_seconds: time limit of the measurement.
        progress: called with the number of rounds and the share of the time used.
    """
    models = {"dense": for_measuring(dense, setting), "small": for_measuring(small, setting)}
    if eager is not None:
        models["eager"] = eager
    return Measured.of(
        compare_models(
            models,
            setting,
            rel_error=rel_error,
            min_rounds=min_rounds,
            max_seconds=max_seconds,
            progress=progress,
        )
    )


def for_measuring(model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
    """Return the model if it has the setting's device and data type, else a copy that may be converted."""
    same_device = _resolved(model.device) == _resolved(torch.device(setting.device))
    return model if same_device and model.dtype == dtype_of(setting) else copy.deepcopy(model)


def _resolved(device: torch.device) -> tuple[str, int]:
    """Return the type and the number of a device; "cuda" is the current GPU."""
    if device.index is not None and device.type != "cpu":
        return device.type, device.index
    return device.type, torch.cuda.current_device() if device.type == "cuda" else 0


class PartsClock:
    """A clock that times the parts of a call one by one and reports their mean or median.

    Args:
        clock: times a single part.
        parts: number of parts of each call.
        figure: maps seconds (calls, parts) and an axis to seconds (calls,), such as numpy.mean.
    """

    def __init__(self, clock: Clock, parts: int, figure: Callable[..., Any]) -> None:
        self.name = clock.name
        self.now = clock.now
        self._clock, self._parts, self._figure = clock, parts, figure
        if isinstance(clock, WatchingClock):
            self.watch = clock.watch
        self._seconds: list[float] = []

    def call(self, functions: Sequence[Callable[..., object]]) -> Callable[..., None]:
        """Return a function that calls each function with its argument, each call being one part."""

        def run(*arguments: object) -> None:
            for function, argument in zip(functions, arguments, strict=True):
                self._seconds.append(self._clock.elapsed(functools.partial(function, argument)))

        return run

    def elapsed(self, run: Callable[[], object]) -> float:
        """Return the mean or median seconds of a call's parts, summed over the calls that `run` makes."""
        self._seconds = []
        run()
        return float(self._figure(np.reshape(self._seconds, (-1, self._parts)), axis=1).sum())


def compare_models(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    rel_error: float = 0.01,
    min_rounds: int = MIN_ROUNDS,
    max_seconds: float = 60.0,
    progress: Callable[[int, float], None] | None = None,
) -> Comparison:
    """Time each model on the same random tokens in the setting's regime, in interleaved rounds.

    The others are compared with the first model: ``result.speedup(name)``. Models are moved to the setting's
    device and data type. With several lengths, every round runs each of them; the time of a round is their
    mean, or for generation their median.

    Raises:
        UsageError: if the setting does not fit a model (see `setting_for`).
        NotFinite: if the outputs of a model are not finite.
    """
    setting = setting_for(setting, list(models.values()))
    inputs = tuple(random_tokens(list(models.values()), setting, length) for length in setting.lengths)
    prepared = {}
    for name, model in models.items():
        model.to(device=setting.device, dtype=dtype_of(setting))  # type: ignore[call-arg]  # a decorator hides self
        require_finite_outputs(name, model.eval(), inputs[0][:1])  # a whole batch takes seconds
        prepared[name] = [_timed_call(model, setting, tokens) for tokens in inputs]
    variants: dict[str, Callable[..., object]] = {name: calls[0] for name, calls in prepared.items()}
    clock: Clock | Literal["wall", "cpu"] = clock_of(setting)
    if len(inputs) > 1:
        figure = np.median if setting.regime == "generate" else np.mean
        clock = PartsClock(_clock_of(setting), len(inputs), figure)
        variants = {name: clock.call(calls) for name, calls in prepared.items()}
    with kept_seed(setting):
        return compare(
            variants,
            inputs,
            rel_error=rel_error,
            min_rounds=min_rounds,
            max_seconds=max_seconds,
            clock=clock,
            threads=setting.threads,
            progress=progress,
        )


def _timed_call(
    model: PreTrainedModel, setting: Setting, tokens: torch.Tensor
) -> Callable[[torch.Tensor], object]:
    """Return the function to time on inputs of the shape of `tokens`: a forward pass or a generation."""
    if setting.regime == "generate":
        return generation(model, setting.new_tokens)
    if isinstance(model, ExportedModel):  # it has an engine of its own
        return EagerEngine().prepare(model, (tokens,))
    return ENGINES.get(setting.engine, EagerEngine)().prepare(model, (tokens,))


def _clock_of(setting: Setting) -> Clock:
    """Return the clock for one part of a call."""
    device = torch.device(setting.device)
    if clock_of(setting) == "wall":
        return WallClock() if device.type == "cpu" else DeviceClock(device)
    if device.type != "cpu" or (setting.threads or torch.get_num_threads()) != 1:
        raise UsageError("clock cpu needs a single thread on a CPU", "use --threads 1, or --clock wall")
    return CpuClock()

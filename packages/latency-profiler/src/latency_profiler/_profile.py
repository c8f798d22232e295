"""Profile families of modules, timing all their sizes in every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from latency_profiler._callables import check_output, device_of
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._curve import LatencyCurve
from latency_profiler._engines import Engine, EngineName, resolve_engine
from latency_profiler._errors import FactoryError, OptionError, ProfilerError, one_line
from latency_profiler._memory import keep_freed_memory
from latency_profiler._rounds import Inputs, Progress, Stopping, Variant, balanced_repeats, run_rounds
from latency_profiler._sizes import checked_sizes
from latency_profiler._statistics import fastest_tenth
from latency_profiler._threads import pinned_threads, resolve_threads
from latency_profiler._timing import summarise, worst_time_error

Build = Callable[[int], Callable[..., object]]


@dataclass(frozen=True)
class Family:
    """Module that can be built at several sizes.

    Attributes:
        build: Factory that takes a size and returns a module or any other callable; ``build(0)`` returns what
            replaces a removed module.
        sizes: Sizes in strictly falling or rising order.
        inputs: Tensor, tuple of arguments, or function without parameters that returns such a tuple. The
            function is called before every call of the module and is not timed; use it for modules that
            change their inputs.
    """

    build: Build
    sizes: Sequence[int]
    inputs: Inputs


def profile(
    build: Build,
    sizes: Sequence[int],
    inputs: Inputs,
    *,
    rel_error: float = 0.02,
    confidence: float = 0.99,
    min_rounds: int = 60,
    max_seconds: float = 240.0,
    engine: EngineName | Engine = "eager",
    clock: ClockName | Clock = "wall",
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LatencyCurve:
    """Measure the latency of ``build(size)(*inputs)`` at every size: ``profile(build, [12, 8, 4, 0], x)``.

    This is `profile_families` for a single family; the parameters are described there and in `Family`.
    """
    curves = profile_families(
        {"build": Family(build, sizes, inputs)},
        rel_error=rel_error,
        confidence=confidence,
        min_rounds=min_rounds,
        max_seconds=max_seconds,
        engine=engine,
        clock=clock,
        threads=threads,
        seed=seed,
        progress=progress,
    )
    return curves["build"]


def profile_families(
    families: Mapping[str, Family],
    *,
    rel_error: float = 0.02,
    confidence: float = 0.99,
    min_rounds: int = 60,
    max_seconds: float = 240.0,
    engine: EngineName | Engine = "eager",
    clock: ClockName | Clock = "wall",
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, LatencyCurve]:
    """Measure the latency curves of several families in the same rounds, so that they are comparable.

    A whole model can be included as a family with one size, ``Family(lambda size: model, [1], inputs)``. Its
    time minus the sum of its modules' times is the fixed part of a table.

    The time of a size is the mean of the fastest tenth of its samples, which is the estimate that changes
    least with the load of the machine. The curves are then made monotone by `LatencyCurve.fit`.

    Before anything is timed, every module is built, prepared by the engine, called once to check that its
    outputs are finite, and warmed up. All modules stay in memory: a family of widths 3072·0.9^i takes ten
    times the memory of its largest module.

    Args:
        families: Families by name.
        rel_error: Requested half-width of the confidence interval of every time, relative to the time.
        confidence: Confidence level of the intervals.
        min_rounds: Minimum number of rounds, unless `max_seconds` is reached first.
        max_seconds: Time limit of the measurement, excluding building and warm-up.
        engine: "eager", "compile", "onnxruntime", "openvino", or an `Engine` object, such as
            ``OnnxRuntimeEngine(quantize="int8")``.
        clock: "wall" (elapsed time; device events on accelerators), "cpu" (CPU time of this process, for
            shared machines; one thread only), or a `Clock` object.
        threads: Number of threads of torch and of the engine during the measurement; None takes that of the
            engine object, else torch's current setting.
        seed: Seed of the random order within each round.
        progress: Called after each round with the number of rounds and the fraction of `max_seconds` used;
            the fraction is 1.0 at the end.

    Returns:
        One curve per family, by name.

    Raises:
        OptionError: An argument is out of range, or there are no families.
        SizeError: Sizes are negative, unsorted or repeated.
        FactoryError: A factory raises an exception or returns something that is not callable.
        EngineError: The engine cannot prepare a module.
        MissingExtra: A package of the engine is not installed.
        OutputError: A module cannot be called with the inputs, or its outputs are not finite.
    """
    if not families:
        raise OptionError("there are no families to profile", "give at least one Family")
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds)
    engine = resolve_engine(engine)
    sizes = {name: checked_sizes(family.sizes) for name, family in families.items()}
    threads = resolve_threads(threads, engine)
    with pinned_threads(threads), keep_freed_memory():
        variants = [
            _prepared_variant(family, size, engine)
            for name, family in families.items()
            for size in sizes[name]
        ]
        rounds = run_rounds(
            variants,
            resolve_clock(clock, device_of(variants[0].function, variants[0].arguments())),
            stopping,
            lambda samples: worst_time_error(samples, confidence, fastest_tenth),
            repeats=balanced_repeats,
            seed=seed,
            progress=progress,
        )
    timings = iter(summarise(rounds, confidence, fastest_tenth))
    return {
        name: LatencyCurve.fit(values, tuple(next(timings) for _ in values)) for name, values in sizes.items()
    }


def _prepared_variant(family: Family, size: int, engine: Engine) -> Variant:
    """Build the module of one size, prepare it with the engine and check its outputs."""
    try:
        module = family.build(size)
    except ProfilerError:
        raise
    except Exception as error:
        raise FactoryError(
            f"build({size}) raised {one_line(error)}",
            "the factory must support every listed size, including 0 if it is listed",
        ) from error
    if not callable(module):
        raise FactoryError(
            f"build({size}) returned {type(module).__name__}, which is not callable",
            "return a module or a function",
        )
    variant = Variant(module, family.inputs)
    variant.function = engine.prepare(module, variant.arguments())
    check_output(variant.function, variant.arguments(), f"build({size})")
    return variant

"""Profile a family of modules: all sizes in every round, never one size after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from latency_profiler._callables import check_output, device_of
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._curve import LatencyCurve
from latency_profiler._engines import Engine, EngineName, resolve_engine
from latency_profiler._errors import FactoryError, OptionError, ProfilerError, one_line
from latency_profiler._memory import kept_memory
from latency_profiler._rounds import Inputs, Progress, Stopping, Variant, run_rounds
from latency_profiler._sizes import checked_sizes
from latency_profiler._statistics import fastest_tenth
from latency_profiler._threads import pinned_threads
from latency_profiler._timing import seconds_error, summarise

Build = Callable[[int], Callable[..., object]]


@dataclass(frozen=True)
class Family:
    """A module at several sizes.

    Attributes:
        build: From a size to a module or any other callable; build(0) is what is left of a removed module.
        sizes: Strictly falling or rising.
        inputs: A tensor, a tuple of arguments, or a function of nothing that returns such a tuple; the
            function is called before every call, outside the timing, for modules that change their inputs.
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
    """Seconds of ``build(size)(*inputs)`` for every size: ``profile(build, range(12, -1, -1), x)``.

    See `profile_families`, of which this is the case of one family.
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
    """The curves of several families, measured in the same rounds so that they can be set against each other.

    A whole model fits in as a family of one size, ``Family(lambda size: model, [1], inputs)``; what its time
    exceeds the sum of its modules by is the fixed part of a table.

    The time of a size is the mean of the fastest tenth of its samples, which changes least when the load of
    the machine does; then curves are made monotone (`LatencyCurve.fit`).

    All modules are alive at once: a family of widths 3072·0.9^i takes ten times the memory of its largest.
    Each is built, prepared by the engine, called once to see that its outputs are finite, and warmed up
    before anything is timed.

    Args:
        families: By name.
        rel_error: Wanted half-width of the confidence interval of every size's time, relative.
        confidence: Of the intervals.
        min_rounds: Fewest rounds, unless the time is up.
        max_seconds: Longest time to measure, building and warm-up excluded.
        engine: "eager", "compile", or any `Engine`.
        clock: "wall" (on accelerators: device events), "cpu" (CPU time of this process, for shared machines;
            one thread only), or any `Clock`.
        threads: Threads of torch for the duration; None leaves them as they are.
        seed: Of the orders within rounds.
        progress: Called with the number of rounds and the fraction of `max_seconds` used up.

    Raises:
        SizeError: Sizes are negative, unsorted or repeated.
        FactoryError: A factory raises or returns something that cannot be called.
        OutputError: A module cannot be called with the inputs, or its outputs are not finite.
    """
    if not families:
        raise OptionError("there is no family to profile", "give at least one")
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds)
    engine = resolve_engine(engine)
    sizes = {name: checked_sizes(family.sizes) for name, family in families.items()}
    with pinned_threads(threads), kept_memory():
        variants = [_ready(family, size, engine) for name, family in families.items() for size in sizes[name]]
        rounds = run_rounds(
            variants,
            resolve_clock(clock, device_of(variants[0].function, variants[0].arguments())),
            stopping,
            lambda samples: seconds_error(samples, confidence, fastest_tenth),
            balanced=True,
            seed=seed,
            progress=progress,
        )
    timings = iter(summarise(rounds, confidence, fastest_tenth))
    return {
        name: LatencyCurve.fit(values, tuple(next(timings) for _ in values)) for name, values in sizes.items()
    }


def _ready(family: Family, size: int, engine: Engine) -> Variant:
    """Build, prepare and check the module of one size."""
    try:
        module = family.build(size)
    except ProfilerError:
        raise
    except Exception as error:
        raise FactoryError(
            f"build({size}) raises {one_line(error)}", "every size must be built, also 0 if it is listed"
        ) from error
    if not callable(module):
        raise FactoryError(
            f"build({size}) returns {type(module).__name__}, which cannot be called",
            "return a module or a function",
        )
    variant = Variant(module, family.inputs)
    variant.function = engine.prepare(module, variant.arguments())
    check_output(variant.function, variant.arguments(), f"build({size})")
    return variant

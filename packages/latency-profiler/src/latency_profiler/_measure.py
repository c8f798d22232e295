"""Time a single callable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latency_profiler._callables import device_of, in_inference_mode
from latency_profiler._clock import Clock, ClockName, resolve_clock
from latency_profiler._memory import keep_freed_memory
from latency_profiler._rounds import Progress, Stopping, Variant, run_rounds
from latency_profiler._threads import check_threads, pinned_threads
from latency_profiler._timing import Timing, summarise, worst_time_error

if TYPE_CHECKING:
    from collections.abc import Callable


def measure(
    function: Callable[..., object],
    *args: object,
    rel_error: float = 0.01,
    confidence: float = 0.99,
    min_rounds: int = 60,
    min_seconds: float = 0.2,
    max_seconds: float = 10.0,
    clock: ClockName | Clock = "wall",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Timing:
    """Time a callable or module: ``measure(model, x)``.

    Sampling stops when the 20th percentile is known to `rel_error`, after at least `min_rounds` samples and
    `min_seconds`, or when `max_seconds` have passed. `Timing.stopped` says which of the two happened. To
    compare callables use `compare`: successive calls of `measure` meet different load on the machine.

    Args:
        function: Callable to time. A module is called under `torch.inference_mode()`; its train or eval
            mode is not changed.
        *args: Arguments of `function`.
        rel_error: Requested half-width of the confidence interval, relative to the time.
        confidence: Confidence level of the interval.
        min_rounds: Minimum number of samples, unless `max_seconds` is reached first.
        min_seconds: Minimum time of the measurement.
        max_seconds: Time limit of the measurement, excluding warm-up.
        clock: "wall" (elapsed time; device events on accelerators), "cpu" (CPU time of this process, for
            shared machines; one thread only), or a `Clock` object.
        threads: Number of torch threads during the measurement; None keeps the current setting. An exported
            model must have been prepared or loaded with the same number.
        progress: Called after each sample with the number of samples and the fraction of `max_seconds` used;
            the fraction is 1.0 at the end.

    Raises:
        OptionError: An argument is out of range.
    """
    stopping = Stopping(rel_error, confidence, min_rounds, max_seconds, min_seconds)
    variant = Variant(in_inference_mode(function), args)
    with pinned_threads(threads), keep_freed_memory():
        check_threads({"the callable": function})
        rounds = run_rounds(
            [variant],
            resolve_clock(clock, device_of(function, args)),
            stopping,
            lambda samples: worst_time_error(samples, confidence),
            progress=progress,
        )
    return summarise(rounds, confidence)[0]

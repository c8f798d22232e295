"""Clocks that time one sample: elapsed time, CPU time of this process, or accelerator events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from latency_profiler._competition import watch_others
from latency_profiler._errors import OptionError, require

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

ClockName = Literal["wall", "cpu"]


class Clock(Protocol):
    """Interface of a clock. Any object with these members will do, such as a fake clock in tests."""

    @property
    def name(self) -> str:
        """Name recorded in the environment."""

    def now(self) -> float:
        """Return the wall-clock time in seconds; time limits are checked against it."""

    def elapsed(self, run: Callable[[], object]) -> float:
        """Call `run` once and return the seconds it took."""


@runtime_checkable
class WatchingClock(Clock, Protocol):
    """A clock that also knows how much of the machine other processes use; other clocks need not."""

    def watch(self) -> Callable[[], float]:
        """Start watching; return a function that returns which share of the cores others have used since."""


class WallClock:
    """Elapsed time, as a user experiences it. The default on a CPU."""

    name = "wall"

    def now(self) -> float:
        """Return the wall-clock time in seconds."""
        return time.perf_counter()

    def elapsed(self, run: Callable[[], object]) -> float:
        """Call `run` once and return the elapsed seconds."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def watch(self) -> Callable[[], float]:
        """Start watching; return a function that returns which share of the cores others have used since."""
        return watch_others()


class CpuClock(WallClock):
    """CPU time of this process. Use it on shared machines: time spent waiting for a core does not count."""

    name = "cpu"

    def elapsed(self, run: Callable[[], object]) -> float:
        """Call `run` once and return its CPU time in seconds, summed over the threads of this process."""
        start = time.process_time()
        run()
        return time.process_time() - start


class DeviceClock(WallClock):
    """Time between two events on the accelerator's current stream, through torch's generic API.

    The device is synchronised before the first event, so that work queued earlier does not count. The clock
    then waits for the second event, so that all the work of the timed call counts.
    """

    name = "device"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def elapsed(self, run: Callable[[], object]) -> float:
        """Call `run` once and return the seconds that the device took for the work queued by `run`."""
        import torch

        stream = torch.accelerator.current_stream(self.device)
        start = torch.Event(device=self.device, enable_timing=True)
        end = torch.Event(device=self.device, enable_timing=True)
        torch.accelerator.synchronize(self.device)
        start.record(stream)
        run()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / 1e3  # milliseconds to seconds

    def watch(self) -> Callable[[], float]:
        """Return a function that returns 0: the CPU's cores do not compete with the accelerator."""
        return lambda: 0.0


def resolve_clock(clock: ClockName | Clock, device: torch.device) -> Clock:
    """Return the clock with the given name for work on `device`; clock objects are returned unchanged.

    Raises:
        OptionError: The name is unknown, or "cpu" is used with an accelerator or with several threads.
    """
    if not isinstance(clock, str):
        return clock
    if clock not in ("wall", "cpu"):
        raise OptionError(f"unknown clock {clock!r}", "use 'wall', 'cpu' or a Clock object")
    if clock == "wall":
        return WallClock() if device.type == "cpu" else DeviceClock(device)
    require(
        device.type == "cpu",
        f"clock 'cpu' cannot time work on {device.type}",
        "use clock='wall', which records events on the device",
    )
    import torch

    threads = torch.get_num_threads()
    require(
        threads == 1,
        f"clock 'cpu' sums the time of all threads, and torch uses {threads} threads",
        "use threads=1 or clock='wall'",
    )
    return CpuClock()

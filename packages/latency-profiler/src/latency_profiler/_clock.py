"""Clocks: what one sample took, on the wall, in CPU time of this process, or on an accelerator's stream."""

import time
from collections.abc import Callable
from typing import Literal, Protocol

import torch

from latency_profiler._errors import OptionError, require

ClockName = Literal["wall", "cpu"]


class Clock(Protocol):
    """What the profiler asks of a clock; a fake one for tests needs no more."""

    @property
    def name(self) -> str:
        """What is recorded in the environment."""

    def now(self) -> float:
        """Seconds on the wall, for time limits."""

    def elapsed(self, run: Callable[[], object]) -> float:
        """Call `run` once and return the seconds it took."""


class WallClock:
    """Elapsed time: what a user waits for. The default."""

    name = "wall"

    def now(self) -> float:
        """Seconds on the wall."""
        return time.perf_counter()

    def elapsed(self, run: Callable[[], object]) -> float:
        """Seconds on the wall that `run` took."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


class CpuClock(WallClock):
    """CPU time of this process: blind to other processes that take the core away, for shared machines."""

    name = "cpu"

    def elapsed(self, run: Callable[[], object]) -> float:
        """Seconds of CPU time that `run` took, summed over the threads of this process."""
        start = time.process_time()
        run()
        return time.process_time() - start


class DeviceClock(WallClock):
    """Time between two events on the accelerator's current stream, through torch's generic API.

    The device is idle when the first event is recorded, so nothing queued earlier is counted, and the
    second is waited for, so nothing is left out.
    """

    name = "device"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def elapsed(self, run: Callable[[], object]) -> float:
        """Seconds between the events before and after the work that `run` queues."""
        stream = torch.accelerator.current_stream(self.device)
        start = torch.Event(device=self.device, enable_timing=True)
        end = torch.Event(device=self.device, enable_timing=True)
        torch.accelerator.synchronize(self.device)
        start.record(stream)
        run()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / 1e3  # events count milliseconds


def resolve_clock(clock: ClockName | Clock, device: torch.device) -> Clock:
    """The clock of that name for work on `device`; a clock object is returned as it is."""
    if not isinstance(clock, str):
        return clock
    if clock not in ("wall", "cpu"):
        raise OptionError(
            f"clock {clock!r} is not known", "use 'wall', 'cpu' or an object with now and elapsed"
        )
    if clock == "wall":
        return WallClock() if device.type == "cpu" else DeviceClock(device)
    require(
        device.type == "cpu",
        f"clock 'cpu' cannot time work on {device.type}",
        "use clock='wall', which records events on the device",
    )
    threads = torch.get_num_threads()
    require(
        threads == 1,
        f"clock 'cpu' adds up the time of all threads and torch has {threads}",
        "use threads=1 or clock='wall'",
    )
    return CpuClock()

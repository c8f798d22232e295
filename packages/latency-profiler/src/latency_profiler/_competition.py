"""How busy other processes keep the cores, and how far ratios of times may then be off.

Processes that compute at the same time share caches, memory and execution units. No clock can see that: a
model takes more time, also CPU time, and a small model may be slowed more or less than a large one. More
rounds do not help, because all of them meet the same competition.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

STATISTICS = Path("/proc/stat")
# What the services of a quiet machine use. Below it, competition counts as none.
NEGLIGIBLE = 0.05
# How far others change the logarithm of a ratio of CPU times, relative to it, if they use all cores. All that
# was seen lies between the two: in bench/contention.py, processes that multiplied or copied matrices, or
# counted, made it smaller by up to 7 %, and never larger. In two comparisons of whole models, each beside
# three processes that used 77 % of the cores, it was too small by 1.4 to 5.5 %, and by 3.2 % in the mean.
TYPICAL_CHANGE = 0.04
LARGEST_CHANGE = 0.1


class _Used(NamedTuple):
    wall: float
    own: float  # CPU seconds of this process
    all: float  # CPU seconds of all processes on this process's cores


def watch_others() -> Callable[[], float]:
    """Start watching; return a function that returns which share of the cores others have used since then.

    It is the share of the cores that this process may use. Where the system does not count their time, as on
    macOS, the load average of the last minute stands in for it.
    """
    cores = usable_cores()
    start = _used(cores)

    def share() -> float:
        now = _used(cores)
        wall, own = now.wall - start.wall, now.own - start.own
        if wall <= 0:
            return 0.0
        others = now.all - start.all - own
        if math.isnan(others):
            others = _load_average() * wall - own
        return min(max(others / (wall * len(cores)), 0.0), 1.0)

    return share


def usable_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def log_slowdown(competition: float, log_ratio: float) -> float:
    """Return by how much the logarithm of a ratio of CPU times is typically too close to 0.

    Beside processes that use this share of the cores, the one with less work loses more: more of it fits into
    caches, which have to be filled again.
    """
    return TYPICAL_CHANGE * competition * log_ratio if competition >= NEGLIGIBLE else 0.0


def log_doubt(competition: float, log_ratio: float, *, corrected: bool) -> float:
    """Return how far the logarithm of a ratio may be off if others use this share of the cores.

    Calls of equal work are slowed alike; the more their work differs, the less can be said. With `corrected`,
    the ratio has been corrected by `log_slowdown`.
    """
    largest = LARGEST_CHANGE - TYPICAL_CHANGE if corrected else LARGEST_CHANGE
    return largest * competition * abs(log_ratio) if competition >= NEGLIGIBLE else 0.0


def _used(cores: frozenset[int]) -> _Used:
    return _Used(time.perf_counter(), time.process_time(), _seconds_of(cores))


def _seconds_of(cores: frozenset[int]) -> float:
    """Return for how long the cores were busy since the system started; nan if it does not say."""
    try:
        lines = STATISTICS.read_text().splitlines()
    except OSError:
        return math.nan
    ticks = 0
    for name, *fields in (line.split() for line in lines if line.startswith("cpu")):
        if name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
            ticks += user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _load_average() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

"""Choosing the clock: wall time, or CPU time on a machine that is too busy for wall time."""

import os
import time
from dataclasses import dataclass, replace

import torch

from ziplm.options.setting import Setting

PROBE_SECONDS = 0.3
MOST_WAITING = 1.05  # wall time over CPU time of the probe, above which wall times cannot be trusted
PROBE_WIDTH = 128  # the probe multiplies square matrices of this size, which takes well below a millisecond


@dataclass(frozen=True)
class Probe:
    """How busy a machine is.

    Attributes:
        waiting: wall time of a short computation on one thread, divided by its CPU time; 1 if undisturbed.
        load: processes that were running or waiting during the last minute; None if the system does not say.
        cores: number of cores that this process may use.
    """

    waiting: float
    load: float | None
    cores: int

    @property
    def busy(self) -> bool:
        """Whether other work distorts wall times."""
        crowded = self.load is not None and self.load > self.cores + 0.5
        return crowded or self.waiting > MOST_WAITING

    def __str__(self) -> str:
        load = "unknown" if self.load is None else f"{self.load:.1f}"
        text = f"load {load} on {self.cores} cores"
        if self.waiting <= MOST_WAITING:
            return text
        return f"{text}, a probe took {self.waiting - 1:.0%} longer than its CPU time"


def probe_machine(seconds: float = PROBE_SECONDS) -> Probe:
    """Run a short computation on one thread, and compare its wall time with its CPU time."""
    matrix = torch.ones(PROBE_WIDTH, PROBE_WIDTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.perf_counter() - wall < seconds:
            torch.mm(matrix, matrix)
        waiting = (time.perf_counter() - wall) / max(time.thread_time() - cpu, 1e-9)
    finally:
        torch.set_num_threads(threads)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Probe(waiting, load, cores)


def choose_clock(setting: Setting, probe: Probe) -> tuple[Setting, str]:
    """Replace the clock "auto" by "wall" or "cpu"; return the setting and one line that explains the choice.

    CPU time counts the work of one thread and nothing else, so that it is not disturbed by other processes;
    it says nothing about several threads or a GPU.
    """
    if setting.clock != "auto":
        return setting, f"clock: {setting.clock}, as asked"
    on_cpu = setting.device.startswith("cpu")
    if not probe.busy:
        return replace(setting, clock="wall"), f"clock: wall time ({probe})"
    if on_cpu and (setting.threads or torch.get_num_threads()) == 1:
        return replace(setting, clock="cpu"), f"clock: CPU time, since the machine is busy ({probe})"
    return (
        replace(setting, clock="wall"),
        f"clock: wall time, although the machine is busy ({probe})"
        + ("; --threads 1 would allow CPU time" if on_cpu else ""),
    )

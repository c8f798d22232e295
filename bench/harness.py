"""Shared by all benchmarks: one thread, CPU time of the process, peak memory, and tables."""

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

CLOCK_HELP = "clock to measure with (cpu, which suits shared machines)"


def announce(title: str, *packages: str) -> None:
    """Use one thread, and print what is measured with which versions."""
    torch.set_num_threads(1)
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(
        f"\n{title}\none thread; Python {platform.python_version()}, {versions}; {platform.machine()}\n",
        flush=True,
    )


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Return the smallest CPU time of several runs, in seconds.

    CPU time is used because the machine may be shared, and the smallest because other load only adds to it.
    """
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def peak_extra_megabytes(run: Callable[[], object]) -> float:
    """Return how far resident memory rises during `run` above its level before, in MB (Linux only).

    The kernel records the high-water mark, so that even short peaks count. Freed memory that the allocator
    still holds is returned to the kernel first; otherwise `run` could use it without being noticed.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = status_kilobytes("VmRSS")
    result = run()
    peak = status_kilobytes("VmHWM")
    del result
    return (peak - before) * 1024 / 1e6


def status_kilobytes(field: str) -> int:
    """Return a memory figure of this process: VmRSS for the current size, VmHWM for the peak (Linux only)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
    """Print a table; the first column is left-aligned, the others right-aligned."""
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=120, highlight=False).print(table)

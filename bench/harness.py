"""What the benchmarks share: one thread, process CPU time, peak memory, and a table."""

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


def announce(title: str, *packages: str) -> None:
    """Pin to one thread and say what is measured, with which versions."""
    torch.set_num_threads(1)
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    print(
        f"\n{title}\none thread; Python {platform.python_version()}, {versions}; {platform.machine()}\n",
        flush=True,
    )


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Smallest process CPU time of `repeats` runs, in seconds.

    CPU time, because the machine may be shared; the smallest, because other load only ever adds.
    """
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def peak_extra_megabytes(run: Callable[[], object]) -> float:
    """How far resident memory rises above its present level while `run` runs (Linux only), in MB.

    The kernel keeps the high-water mark, so nothing short is missed. Whatever freed memory the allocator
    still holds is returned first; otherwise `run` could use it unseen.
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
    """What the kernel says of this process (Linux only), such as VmRSS, or VmHWM for its peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
    """Print rows under a title: the first column left-aligned, the rest right-aligned."""
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=120, highlight=False).print(table)

"""Threads pinned for the duration of a measurement, and restored."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from latency_profiler._errors import require


@contextmanager
def pinned_threads(threads: int | None) -> Iterator[None]:
    """Let torch compute with `threads` threads inside the block; None changes nothing."""
    if threads is None:
        yield
        return
    require(threads >= 1, f"threads is {threads}", "use a whole number from 1 up, or None to leave it")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

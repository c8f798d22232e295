"""Fix the number of torch threads during a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from latency_profiler._errors import require


@contextmanager
def pinned_threads(threads: int | None) -> Iterator[None]:
    """Set the number of torch threads inside the block and restore it afterwards; None changes nothing."""
    if threads is None:
        yield
        return
    require(threads >= 1, f"threads is {threads}", "use a positive integer, or None for the current setting")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

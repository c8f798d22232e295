"""Keep freed memory in the process during a measurement.

glibc returns large freed blocks to the kernel depending on thresholds that adapt to earlier frees. Returned
memory has to be mapped again, page by page, during the next timed call: with 12 MB of activations these page
faults took 1 to 5 % of a feed-forward block's time, and differed between two profiles in one process.
Allocation should not be part of the measured time, so freed memory is kept.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of mallopt, from <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MEBIBYTE = 1 << 20
LARGEST_MMAP_THRESHOLD = 32 * MEBIBYTE  # the largest value that glibc accepts
NEVER_TRIM = (1 << 31) - 1  # free bytes above which glibc returns memory: the largest int


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process until the ``with`` statement ends; do nothing without glibc.

    Afterwards, the memory is returned, and the thresholds are those that glibc itself sets once a process has
    freed 32 MiB in one piece.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if libc is None or not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER_TRIM)
    try:
        yield
    finally:
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
        libc.malloc_trim(0)

"""Memory that stays with the process while it is measured.

glibc returns large freed blocks to the kernel, or does not, by thresholds that move with what was freed
before. What it returned must be mapped again, page by page, within the next call that is timed: at 12 MB of
activations those page faults were 1 to 5 % of a feed-forward block's time, and differed between two profiles
in one process. Allocation is no part of what is measured here, so it is made to stay out.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Of <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MEBIBYTE = 1 << 20
LARGEST_MMAP_THRESHOLD = 32 * MEBIBYTE  # glibc takes no larger one
NEVER = (1 << 31) - 1  # the largest int, in bytes of free memory beyond which some is returned


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and return it afterwards; does nothing without glibc.

    Afterwards thresholds are those at which glibc itself arrives in a process that frees a block of 32 MiB.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if libc is None or not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
        libc.malloc_trim(0)

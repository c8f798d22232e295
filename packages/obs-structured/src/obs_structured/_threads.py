"""Number of threads for linear algebra: small operations run on one thread, whatever the environment says.

A pool of threads helps with large matrix products only. Each small operation has to wake the threads and wait
for them, and if the cores are busy, it waits for other processes, too: with two threads on two busy cores,
`prune` for 384x1536 took 20 times the CPU time of one thread, and 30 times as long. To use several cores,
prune several matrices at once, in threads or processes.

torch keeps the number of threads per calling thread, and setting it takes less than a microsecond. Only a
thread that is started meanwhile begins with the same number.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Floating point operations below which one thread is used: a few tenths of a second on one core. With 2e9,
# two threads on two busy cores took 2.3 times the CPU time of one for `prune` of 768x3072, and twice as long.
LARGE = 1e10
BLOCK = 192  # columns of the blocks in which matrices are factorised and multiplied


@contextmanager
def threads_for(operations: float) -> Iterator[None]:
    """Use one thread inside the block if its operations are few; otherwise, leave the number as it is.

    Args:
        operations: approximate number of floating point operations of each call inside the block.
    """
    threads = torch.get_num_threads()
    if threads == 1 or operations >= LARGE:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def product_of_block(weight: object) -> float:
    """Return the operations of the largest products that `prune` makes for a weight matrix (r, d)."""
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return 0.0  # which `prune` refuses
    return 2.0 * BLOCK * weight.shape[1] * max(weight.shape)

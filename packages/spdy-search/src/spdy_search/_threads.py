"""One BLAS thread for our own small products, whatever the environment says.

The matrices here have at most a few hundred rows. On several threads such products are no faster, and while
other programs keep the cores busy, the threads spin and wait for each other: a search then takes tens of
times as much CPU time.
"""

from contextlib import AbstractContextManager
from functools import lru_cache

import scipy.linalg  # noqa: F401  # loads SciPy's own BLAS, so that the controller finds it
from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread inside a `with` block, and restore the user's setting after it.

    A block costs about 20 µs. Functions of the user must not be called inside: they run with the user's own
    number of threads.
    """
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """The BLAS libraries of NumPy and SciPy. Looks at every loaded library: milliseconds, so only once."""
    return ThreadpoolController().select(user_api="blas")

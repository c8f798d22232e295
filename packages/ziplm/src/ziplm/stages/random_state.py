"""Keeping the caller's random state while a library seeds all generators."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_state() -> Iterator[None]:
    """While open, code may seed the generators of Python, NumPy and torch; afterwards they are as before."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # others may use the old generator
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002

"""The number of threads during a measurement: torch's and that of an engine are always the same."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from latency_profiler._errors import OptionError, require


def most_threads() -> int:
    """Return the largest number of threads that is accepted; tens of thousands would end the process."""
    return max(64, 4 * (os.cpu_count() or 1))


def checked_threads(threads: int) -> int:
    """Return the number of threads, or raise OptionError if it is out of range."""
    most = most_threads()
    require(
        isinstance(threads, int) and 1 <= threads <= most,
        f"threads is {threads!r:.40}",
        f"use an integer from 1 to {most}, or None for the current setting",
    )
    return threads


def threads_or_torch(threads: int | None) -> int:
    """Return the number of threads, by default torch's current setting."""
    return torch.get_num_threads() if threads is None else checked_threads(threads)


def resolve_threads(threads: int | None, engine: object) -> int | None:
    """Return the number of threads of a measurement in an engine; None for torch's current setting.

    Raises:
        OptionError: The number is out of range, or the engine object has another one.
    """
    own: int | None = getattr(engine, "threads", None)
    if threads is not None:
        checked_threads(threads)
    if threads is not None and own is not None and threads != own:
        raise OptionError(
            f"the engine has {own} threads, and the measurement {threads}", "give the number only once"
        )
    return threads if own is None else own


def check_threads(functions: Mapping[str, Callable[..., object]]) -> None:
    """Raise OptionError if an exported model runs on another number of threads than torch does now."""
    for name, function in functions.items():
        own: int | None = getattr(function, "threads", None)
        current = torch.get_num_threads()
        if isinstance(own, int) and own != current:
            raise OptionError(
                f"{name} was loaded with {own} threads, and the measurement uses {current}",
                f"give threads={own} to the measurement, or threads={current} to the engine",
            )


@contextmanager
def pinned_threads(threads: int | None) -> Iterator[None]:
    """Set the number of torch threads inside the block and restore it afterwards; None changes nothing."""
    if threads is None:
        yield
        return
    checked_threads(threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Runs that kill themselves, and go on: functions for processes of their own."""

import importlib
import multiprocessing
import os
import signal
from functools import partial
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ziplm"])  # imported once, not by every process


def run(options: dict[str, Any], killer: str | None = None, call: int = 1) -> int | None:
    """`ziplm.compress` in a process of its own; its exit code, negative for a signal.

    Args:
        options: of `compress`.
        killer: a function as ``module:name``, such as ``ziplm.stitch:Evaluator.__call__``, in which the
            process ends by SIGKILL.
        call: at which of its calls.
    """
    process = CONTEXT.Process(target=_compress, args=(options, killer, call))
    process.start()
    process.join(240)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def _compress(options: dict[str, Any], killer: str | None, call: int) -> None:
    import torch
    import ziplm
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock would outlive a killed process
    torch.set_num_threads(1)
    if killer is not None:
        _arm(killer, call)
    ziplm.compress(**options)


def _arm(killer: str, call: int) -> None:
    """Replace a function by one that kills this process at its n-th call, before it does anything."""
    module, _, path = killer.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    function, calls = getattr(owner, name), 0

    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    own = owner.__dict__[name]
    if isinstance(own, classmethod):  # its function is bound already
        setattr(owner, name, staticmethod(partial(armed)))
    else:
        setattr(owner, name, armed)

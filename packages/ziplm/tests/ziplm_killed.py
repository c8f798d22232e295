"""Runs that kill themselves, and go on: functions for processes of their own."""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
from functools import partial
from pathlib import Path
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


def run_to_point(options: dict[str, Any], point: int, notes: Path) -> int | None:
    """`ziplm.compress` in a process of its own that ends by SIGKILL at a point, counted from 1.

    Points are writes, which are left half done, renames and removals, steps of a training, and evaluations of
    candidates. A process that gets to its end writes into `notes` how many points there were; 0 for the point
    to only count them.
    """
    process = CONTEXT.Process(target=_compress_to_point, args=(options, point, notes))
    process.start()
    process.join(240)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def _compress_to_point(options: dict[str, Any], point: int, notes: Path) -> None:
    import safetensors.torch
    import torch
    import ziplm.stitch
    from transformers import Trainer

    passed: list[str] = []

    def half_done(path: str | Path) -> None:
        os.truncate(path, Path(path).stat().st_size // 2)

    def watch(owner: Any, name: str, written: int | None = None) -> None:
        """Make each call of a function a point; `written` is the place of the path among its arguments."""
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            passed.append(name)
            here = len(passed) == point
            if here and written is not None:
                function(*args, **kwargs)
                half_done(args[written])
            if here:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        setattr(owner, name, watched)

    watch(Path, "write_text", 0)
    watch(safetensors.torch, "serialize_file", 1)
    watch(torch, "save", 1)
    watch(os, "replace")
    watch(os, "rename")
    watch(shutil, "rmtree")
    watch(Trainer, "training_step")
    watch(ziplm.stitch.Evaluator, "__call__")
    _compress(options, None, 0)
    notes.write_text(json.dumps(passed))


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

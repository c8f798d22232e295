"""Several processes that compress together, as torchrun would start them, but with ziplm imported already."""

import importlib
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ziplm_killed import CONTEXT

COUNTED = (
    "ziplm.loading:latency_table",
    "ziplm.pipeline:prune_branch",
    "ziplm.member:measure",
    "ziplm.member:refit",
    "ziplm.stitch:Evaluator._evaluate",
    "ziplm.member:save",
)


def run_together(
    options: dict[str, Any], notes: Path, failing: str | None = None, call: int = 1, killed: bool = False
) -> list[int | None]:
    """`ziplm.compress` in each of two processes; their exit codes, negative for signals.

    Args:
        options: of `compress`.
        notes: a folder in which each process leaves ``0.json``, …: what it returned, and how often it called
            the functions of `COUNTED`.
        failing: a function, as in `COUNTED`, that raises an error in the second process.
        call: at which of its calls.
        killed: whether the process ends by SIGKILL instead.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    notes.mkdir(parents=True, exist_ok=True)
    processes = [
        CONTEXT.Process(
            target=_compress,
            args=(options, notes, rank, port, failing if rank == 1 else None, call, killed),
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + 200
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return codes


def notes_of(notes: Path) -> list[dict[str, Any]]:
    """What the processes left behind."""
    return [json.loads(path.read_text()) for path in sorted(notes.glob("*.json"))]


def _compress(
    options: dict[str, Any],
    notes: Path,
    rank: int,
    port: int,
    failing: str | None,
    call: int,
    killed: bool,
) -> None:
    import torch
    import ziplm
    from transformers.utils import logging

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    calls = Counter[str]()

    def fail() -> None:
        calls["fail"] += 1
        if calls["fail"] == call and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if calls["fail"] == call:
            raise RuntimeError("as planned")

    for name in COUNTED:
        _precede(name, partial(calls.update, [name.rpartition(":")[2]]))
    if failing is not None:
        _precede(failing, fail)
    made = ziplm.compress(**options)
    report = {"calls": calls, "made": [member.metrics for member in made]}
    (notes / f"{rank}.json").write_text(json.dumps(report))


def _precede(path: str, before: Callable[[], None]) -> None:
    """Make a function call another one first."""
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        before()
        return function(*args, **kwargs)

    setattr(owner, name, both)

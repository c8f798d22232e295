"""Several processes that compress together, as torchrun would start them, but with ziplm imported already."""

import importlib
import json
import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ziplm_killed import CONTEXT, _arm

COUNTED = (
    "ziplm.pipeline:latency_table",
    "ziplm.pipeline:prune_module",
    "ziplm.member:measure",
    "ziplm.member:refit",
    "ziplm.stitch:Evaluator._evaluate",
    "ziplm.checkpoint:save",
)


def run_together(
    options: dict[str, Any], notes: Path, world: int = 2, killer: str | None = None, call: int = 1
) -> list[int | None]:
    """`ziplm.compress` in each of some processes; their exit codes, negative for signals.

    Args:
        options: of `compress`.
        notes: a folder in which each process leaves ``0.json``, …: what it returned, and how often it called
            the functions of `COUNTED`.
        world: how many processes.
        killer: a function, as for `ziplm_killed.run`, in which the last process dies.
        call: at which of its calls.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    notes.mkdir(parents=True, exist_ok=True)
    processes = [
        CONTEXT.Process(
            target=_compress,
            args=(options, notes, rank, world, port, killer if rank == world - 1 else None, call),
        )
        for rank in range(world)
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
    options: dict[str, Any], notes: Path, rank: int, world: int, port: int, killer: str | None, call: int
) -> None:
    import torch
    import ziplm
    from transformers.utils import logging

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    calls = Counter[str]()
    for name in COUNTED:
        _count(name, calls)
    if killer is not None:
        _arm(killer, call)
    made = ziplm.compress(**options)
    report = {"calls": calls, "made": [member.metrics for member in made]}
    (notes / f"{rank}.json").write_text(json.dumps(report))


def _count(path: str, calls: Counter[str]) -> None:
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    setattr(owner, name, counted)

"""Two processes that work together, started as torchrun would, but with ziplm imported already."""

import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import latency_profiler
import obs_structured
import torch
import ziplm
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel
from transformers.utils import logging
from ziplm_killed import CONTEXT

COUNTED = (latency_profiler.profile_families, latency_profiler.compare, obs_structured.prune)
PROCESSES = 2


def in_two_processes(target: Callable[..., None], *arguments: Any, seconds: float = 200) -> list[int | None]:
    """Call ``target(rank, *arguments)`` in two processes of one torchrun.

    Returns:
        The exit code of each process: negative for signals, None if it did not end within `seconds`.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = [
        CONTEXT.Process(target=_call, args=(target, rank, port, arguments)) for rank in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return codes


def _call(target: Callable[..., None], rank: int, port: int, arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(PROCESSES),
        LOCAL_WORLD_SIZE=str(PROCESSES),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    target(rank, *arguments)


def run_together(
    options: dict[str, Any], notes: Path, fail_after: Path | None = None, killed: bool = False
) -> list[int | None]:
    """Call `ziplm.compress` in each of two processes; return their exit codes, negative for signals.

    Args:
        options: arguments of `compress`.
        notes: folder in which each process leaves its notes, for `notes_in`.
        fail_after: a file. In its first forward pass after this file exists, the second process fails.
        killed: whether it fails by SIGKILL, and not by an error.
    """
    notes.mkdir(parents=True, exist_ok=True)
    return in_two_processes(_compress, options, notes, fail_after, killed)


def run_until_killed(options: dict[str, Any], rank: int, calls: int) -> list[int | None]:
    """Call `ziplm.compress` in each of two processes, one of which ends by SIGKILL.

    Args:
        options: arguments of `compress`.
        rank: the process that is killed.
        calls: number of calls of modules of torch, after which it is.

    Returns:
        The exit codes, negative for signals.
    """
    return in_two_processes(_compress_until_killed, options, rank, calls)


def _compress_until_killed(rank: int, options: dict[str, Any], killed: int, calls: int) -> None:
    left = calls

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if rank == killed and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with register_module_forward_pre_hook(count):
        ziplm.compress(**options)


def notes_in(folder: Path) -> list[dict[str, Any]]:
    """Return the notes of both processes.

    Returns:
        "made", the metrics of the family; "calls", the number of calls of the functions in `COUNTED` and of
        `PreTrainedModel.save_pretrained`; and "passes", the forward passes by stage.
    """
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _compress(rank: int, options: dict[str, Any], notes: Path, fail_after: Path | None, killed: bool) -> None:
    calls, passes = Counter[str](), Passes()
    compress = ziplm.compress  # imports the modules in which functions are replaced
    for function in COUNTED:
        _replace_in_ziplm(function, _counted(function, calls))
    PreTrainedModel.save_pretrained = _counted(PreTrainedModel.save_pretrained, calls)  # type: ignore[method-assign]

    def fail(*_: Any) -> None:
        if rank == 1 and fail_after is not None and fail_after.exists():
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("as planned")

    with register_module_forward_pre_hook(fail), passes.counted():
        made = compress(**options, progress=passes)
    report = {"made": [member.metrics for member in made], "calls": calls, "passes": passes.by_stage}
    (notes / f"{rank}.json").write_text(json.dumps(report))


class Passes:
    """A reporter that counts the forward passes of models, by the stage in which they start.

    `compress` ignores the reporter in all processes except for the first. There, all passes are counted as
    outside of the stages.
    """

    def __init__(self) -> None:
        self.by_stage = Counter[str]()
        self._stage = ""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count all forward passes while the context is open."""
        with register_module_forward_pre_hook(self._count):
            yield

    def _count(self, module: torch.nn.Module, *_: Any) -> None:
        # Some tasks call a model with its head, others its base model alone.
        if isinstance(module, PreTrainedModel) and module.base_model is module:
            self.by_stage[self._stage] += 1

    @contextmanager
    def stage(self, description: str) -> Iterator[Callable[[float, float], None]]:
        """Count the passes of the block as the stage's."""
        before, self._stage = self._stage, description
        try:
            yield lambda done, total: None
        finally:
            self._stage = before

    def note(self, text: str) -> None:
        """Ignore the text."""


def _counted(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    return counted


def _replace_in_ziplm(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Replace a function of another package in all modules of ziplm that have imported it by name."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "ziplm"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is function:
                setattr(module, name, replacement)

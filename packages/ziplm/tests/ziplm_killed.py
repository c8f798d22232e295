"""Runs in processes that end themselves by SIGKILL at a chosen event, to be resumed by the next process.

All events are visible from outside: progress reports, and calls of the standard library, torch, safetensors,
transformers and onnx.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["ziplm.api", "ziplm.architectures.zip_classes"]
)  # imported once, not by every process

TEMPORARY = re.compile(r"\.(.+)\.(?:[0-9a-f]{32}\.ziplm-partial|[0-9a-f]{32}|[a-z0-9_]{8}(?:\.\w+)?|\d+)")
"""Temporary names, with the final name as the first group."""

Kind = Literal["stage", "progress", "write", "descriptor", "rename", "remove", "tokenizer", "step"]
Happens = Callable[[Kind, str], bool]
"""Called before each event with its kind and name; returns whether the process must end there."""


@dataclass(frozen=True)
class Kill:
    """The event at which a process ends.

    Attributes:
        kind: "stage" is the opening of a stage, and "progress" a progress call in it. A "write" leaves a
            half-written file, a "descriptor" (a write to an open file) an empty one. "rename", "remove" and
            "tokenizer" (saving one) end before anything happens.
        name: description of the stage; otherwise a pattern for the path in the run folder, with the final
            names of temporary files and folders.
        count: number of the event among those of this kind and name, from 1.
    """

    kind: Kind
    name: str
    count: int = 1


def run(options: dict[str, Any], kill: Kill | None = None) -> int | None:
    """Call `ziplm.compress` in a process that ends at an event; return its exit code, or -signal."""
    return _exit_code(_compress_to_event, options, kill)


def run_to_point(options: dict[str, Any], point: int, notes: Path) -> int | None:
    """Call `ziplm.compress` in a process that ends at the n-th event of any kind; return its exit code.

    Args:
        options: arguments of `compress`.
        point: number of the event, from 1; 0 for none.
        notes: file into which a process that is not killed writes the kinds of all events.
    """
    return _exit_code(_compress_to_point, options, point, notes)


def _exit_code(target: Callable[..., None], *arguments: Any) -> int | None:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    process.join(600)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def _compress_to_event(options: dict[str, Any], kill: Kill | None) -> None:
    seen = 0

    def happens(kind: Kind, name: str) -> bool:
        nonlocal seen
        if kill is None or kind != kill.kind or not fnmatch(name, kill.name):
            return False
        seen += 1
        return seen == kill.count

    _compress(options, happens)


def _compress_to_point(options: dict[str, Any], point: int, notes: Path) -> None:
    passed: list[str] = []

    def happens(kind: Kind, name: str) -> bool:
        passed.append(kind)
        return len(passed) == point

    _compress(options, happens)
    notes.write_text(json.dumps(passed))


def _compress(options: dict[str, Any], happens: Happens) -> None:
    import torch
    import ziplm
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock would outlive a killed process
    torch.set_num_threads(1)
    _watch_libraries(Path(options["output"]), happens, exports="engine" in options)
    ziplm.compress(**options, progress=_Reports(happens))


class _Reports:
    """A reporter whose stages and progress calls are events."""

    def __init__(self, happens: Happens) -> None:
        self._happens = happens

    @contextmanager
    def stage(self, description: str) -> Iterator[Callable[[float, float], None]]:
        def advance(done: float, total: float) -> None:
            self._tell("progress", description)

        self._tell("stage", description)
        yield advance

    def note(self, text: str) -> None:
        """Ignore the text."""

    def _tell(self, kind: Kind, description: str) -> None:
        if self._happens(kind, description):
            _end()


def _watch_libraries(folder: Path, happens: Happens, exports: bool) -> None:
    """Make events of the functions that write, rename, remove and train, and of those that export."""
    import safetensors.torch
    import torch
    from transformers import PreTrainedTokenizerBase, Trainer

    def watch(kind: Kind, owner: Any, name: str, place: int | None = None) -> None:
        """Make each call an event; `place` is the position of the path among the arguments."""
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            path = "" if place is None else path_of(args[place])
            if Path(path).is_dir() and kind == "write":  # whose entries are made durable
                return function(*args, **kwargs)
            if happens(kind, final_name(path, folder)):
                if kind == "write":
                    function(*args, **kwargs)
                    os.truncate(path, Path(path).stat().st_size // 2)
                _end()
            return function(*args, **kwargs)

        setattr(owner, name, watched)

    watch("write", Path, "write_text", 0)
    watch("write", Path, "write_bytes", 0)
    watch("write", safetensors.torch, "serialize_file", 1)
    watch("write", torch, "save", 1)
    watch("write", os, "fsync", 0)
    watch("descriptor", os, "write")
    watch("rename", os, "replace", 1)
    watch("rename", os, "rename", 1)
    watch("remove", shutil, "rmtree", 0)
    watch("tokenizer", PreTrainedTokenizerBase, "save_pretrained", 1)
    watch("step", Trainer, "training_step")
    if exports:
        import onnx

        watch("write", torch.onnx.ONNXProgram, "save", 1)
        watch("write", onnx, "save", 1)
        watch("write", onnx, "save_model", 1)  # by which ONNX Runtime's quantiser writes


def path_of(file: Any) -> str:
    """Return the path of a file given by its path or its descriptor."""
    return str(Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else file)


def final_name(path: str, folder: Path) -> str:
    """Return a path relative to the run folder, without the decoration of temporary names."""
    if not Path(path).is_relative_to(folder):
        return path
    parts = Path(path).relative_to(folder).parts
    names = [found[1] if (found := TEMPORARY.fullmatch(part)) else part for part in parts]
    if len(names) > 1 and names[-2] == names[-1]:  # a file in a temporary folder of its own
        names.pop()
    return "/".join(names)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

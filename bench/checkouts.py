"""Running commands of ziplm with the code of other checkouts of this repository."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import print_table


def start_command(checkout: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `ziplm` with these arguments in a process of its own, with one thread."""
    sources = [str(path) for path in sorted(checkout.resolve().glob("packages/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "ziplm", *arguments], env=environment, stdout=subprocess.DEVNULL
    )


def compress_arguments(model: Path, task: str, options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `ziplm compress`, from options by their names in Python."""
    given = ["compress", str(model), "--task", task]
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            given += [f"--{name.replace('_', '-')}", str(each)]
    return given


def compare(title: str, commands: Mapping[Path, Sequence[str]]) -> None:
    """Run a command with the code of each checkout, all at the same time, and print what each takes."""
    begin = time.perf_counter()
    running = {start_command(checkout, *arguments).pid: checkout for checkout, arguments in commands.items()}
    rows: list[tuple[str, float, str, str]] = []
    while running:
        pid, status, used = os.wait4(-1, 0)
        if pid not in running:
            continue
        checkout = running.pop(pid)
        if status:
            raise SystemExit(f"the run with the code of {checkout} failed")
        spent, wall = used.ru_utime + used.ru_stime, time.perf_counter() - begin
        rows.append((str(checkout), spent, f"{wall:.0f}", f"{used.ru_maxrss / 1024:.0f}"))
    least = min(row[1] for row in rows)
    print_table(
        title,
        ["", "CPU seconds", "over the least", "wall seconds", "peak memory, MiB"],
        [[name, f"{spent:.0f}", f"{spent / least:.2f}", *rest] for name, spent, *rest in rows],
    )

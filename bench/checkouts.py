"""Running `ziplm compress` with the code of another checkout of this repository."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def start_compress(
    checkout: Path, model: Path, task: str, options: Mapping[str, Any]
) -> subprocess.Popen[bytes]:
    """Start the command in a process of its own, with one thread.

    Args:
        checkout: folder of the checkout.
        model: the dense model.
        task: name of the task.
        options: options of the command by their names in Python; a list repeats the option.
    """
    sources = [str(path) for path in sorted(checkout.resolve().glob("packages/*/src"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    given: list[str] = []
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            given += [f"--{name.replace('_', '-')}", str(each)]
    command = [sys.executable, "-m", "ziplm", "compress", str(model), "--task", task]
    return subprocess.Popen([*command, *given], env=environment, stdout=subprocess.DEVNULL)

"""What all tests share: README examples are tests, and property tests have no deadline."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

# The machines that run this are shared: a slow example is no failure. Every run tries the same examples, so
# that a change is judged by what it changed; HYPOTHESIS_PROFILE=explore tries new ones, =thorough 10,000.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def run_bash(example: Example) -> None:
    """Run a ``bash`` block of a README in the document's folder; the output is not compared.

    Commands are those of this environment, also where it is not activated.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "-euc", example.parsed],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{example.parsed}\n{result.stdout}\n{result.stderr}"


def enter_scratch_folder(namespace: dict[str, Any]) -> None:
    """Examples may write files; each document gets a folder of its own."""
    namespace["__back"] = Path.cwd()
    namespace["__scratch"] = tempfile.TemporaryDirectory()
    os.chdir(namespace["__scratch"].name)


def leave_scratch_folder(namespace: dict[str, Any]) -> None:
    """Leave no file of an example behind."""
    os.chdir(namespace["__back"])
    namespace["__scratch"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser(language="bash", evaluator=run_bash)],
    patterns=["*.md"],
    setup=enter_scratch_folder,
    teardown=leave_scratch_folder,
).pytest()

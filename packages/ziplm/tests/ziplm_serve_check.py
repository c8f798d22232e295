"""Serve the files of `ziplm_serve_files` by examples/serve_onnx.py, in an environment without torch.

Run with the folder of the files as the only argument.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[3] / "examples" / "serve_onnx.py"


def check_served(folder: Path) -> None:
    """Compare what the script prints with what the checkpoints computed."""
    assert find_spec("torch") is None, "torch is installed here"
    assert find_spec("transformers") is None, "transformers is installed here"
    expected = json.loads((folder / "expected.json").read_text())
    found = serve(folder, "classify", expected)
    for row, wanted in zip(found, expected["classify"], strict=True):
        assert_close(list(row.values()), wanted)
    for row, wanted in zip(serve(folder, "embed", expected), expected["embed"], strict=True):
        assert_close(row, wanted)
    made = serve(folder, "generate", expected, "--tokens", str(expected["tokens"]))
    assert [each["ids"] for each in made] == expected["generate"], made
    print(f"classified, embedded and continued {len(expected['texts'])} texts without torch")


def serve(folder: Path, task: str, expected: dict[str, Any], *more: str) -> Any:
    """Run the script on the texts, and return the JSON that it prints."""
    command = [sys.executable, str(SCRIPT), task, str(folder / task), *expected["texts"], *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def assert_close(found: list[float], wanted: list[float]) -> None:
    """Raise AssertionError unless all numbers agree within 1e-5."""
    assert len(found) == len(wanted)
    assert max(abs(own - other) for own, other in zip(found, wanted, strict=True)) < 1e-5, (found, wanted)


if __name__ == "__main__":
    check_served(Path(sys.argv[1]))

"""The section of a model card on how to load the model: with transformers, with ziplm, in an engine."""

import re
from typing import Any

from ziplm.results.plain import mapping
from ziplm.results.run_data import Report

ENGINES = {
    ".onnx": (
        "ONNX Runtime",
        'import onnxruntime\nmodel = onnxruntime.InferenceSession(f"{{PATH}}/{file}")',
    ),
    ".xml": (
        "OpenVINO",
        """import openvino
settings = {{"INFERENCE_PRECISION_HINT": "f32"}}
model = openvino.compile_model(f"{{PATH}}/{file}", "CPU", settings)""",
    ),
}
"""The engine that runs a file with this suffix, and the lines that open it."""
DEFAULT_FILE = "onnx/model.onnx"
"""The file that ``ziplm export`` writes unless it is told otherwise."""


def served_file(report: Report) -> str | None:
    """Return the exported file that was measured and evaluated; None if the checkpoint itself was."""
    files = mapping(report.get("exported")).get("files")
    names = [str(name) for name in files] if isinstance(files, list) else []
    return next((name for name in names if re.fullmatch(r"[\w/]+(\.onnx|\.xml)", name)), None)


def loading_section(report: Report, auto_class: str, is_sentence_folder: bool) -> str:
    """Return the lines that load a member in each way."""
    plain = (
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(PATH, trust_remote_code=True)"
        if is_sentence_folder
        else f"from transformers import AutoTokenizer, {auto_class}\n"
        f"model = {auto_class}.from_pretrained(PATH, trust_remote_code=True)\n"
        "tokenizer = AutoTokenizer.from_pretrained(PATH, trust_remote_code=True)"
    )
    return (
        "## How to load it\n\n"
        "PATH is this folder, or the name of its repository on the Hub. The folder contains the code that "
        f"the model needs, which imports only torch and transformers:\n\n{_block(plain)}\n\n"
        "With ziplm, which runs no code from the folder:\n\n"
        f"{_block('import ziplm', 'model = ziplm.load(PATH)')}\n\n{_engine_lines(served_file(report))}"
    )


def _engine_lines(served: str | None) -> str:
    """Return how to open the exported file; if there is none, how to write it first."""
    file = served or DEFAULT_FILE
    engine, lines = next(value for suffix, value in ENGINES.items() if file.endswith(suffix))
    if served:
        first = f"In {engine}, with `{file}`, the file that was measured; PATH is a folder on this machine:"
    else:
        first = (
            f"In {engine}, which needs neither torch nor ziplm to run the exported file:\n\n"
            f"{_block('$ ziplm export PATH', language='console')}"
        )
    return f"{first}\n\n{_block(lines.format(file=file))}"


def _block(*lines: Any, language: str = "python") -> str:
    return "\n".join([f"```{language}", *lines, "```"])

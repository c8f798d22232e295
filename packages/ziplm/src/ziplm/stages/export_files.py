"""The folder of an exported model: where servers look for its files, and how new files get there."""

import filecmp
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.files import PARTIAL

Format = Literal["onnx", "openvino", "torch-export"]
FORMATS: tuple[Format, ...] = get_args(Format)


class Place(NamedTuple):
    """Folder and name of a file in one format; None for the name of an int8 file if there is none."""

    folder: str
    name: str
    int8_name: str | None


PLACES: dict[Format, Place] = {
    "onnx": Place("onnx", "model.onnx", "model_qint8.onnx"),
    "openvino": Place("openvino", "openvino_model.xml", "openvino_model_qint8_quantized.xml"),
    "torch-export": Place("torch_export", "model.pt2", None),
}
"""Where sentence-transformers and text-embeddings-inference look for ONNX and OpenVINO files."""


def place_of(format: Format, quantize: str | None) -> Path:  # noqa: A002
    """Return the path of an exported file in its folder.

    Raises:
        UsageError: if the format is unknown, or cannot be quantised so.
    """
    if format not in PLACES:
        raise UsageError(f"the format is {format!r}", f"use one of {', '.join(FORMATS)}")
    if quantize not in (None, "int8"):
        raise UsageError(f"quantize is {quantize!r}", "use int8, or leave it out")
    place = PLACES[format]
    if quantize is not None and place.int8_name is None:
        raise UsageError(f"{format} is not quantised", "use --format onnx or openvino for int8")
    return Path(place.folder, place.int8_name if quantize and place.int8_name else place.name)


def write_description(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write config and tokenizer to a folder that has only exported files.

    The config is that of the dense architecture, so that servers can read it without ziplm. The sizes of each
    layer stay in it for information.
    """
    values: dict[str, Any] = model.config.to_dict()
    values.pop("auto_map", None)
    values["model_type"] = str(values["model_type"]).removeprefix("zip_")
    values["architectures"] = [type(model).__name__.removeprefix("Zip")]
    text = json.dumps(values, indent=2, sort_keys=True, default=str) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


@contextmanager
def files_placed(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder; afterwards move its files to the same places in `folder`.

    If the block fails, or a file would replace a different one, nothing is moved. A file that exists with the
    same content stays.

    Raises:
        UsageError: if a different file exists, unless `overwrite` is true.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".export.{uuid.uuid4().hex}{PARTIAL}"
    temporary.mkdir()
    try:
        yield temporary
        made = [path.relative_to(temporary) for path in sorted(temporary.rglob("*")) if path.is_file()]
        new = [path for path in made if not _same(temporary / path, folder / path)]
        if taken := [path for path in new if (folder / path).exists() and not overwrite]:
            raise UsageError(
                f"{folder / taken[0]} exists and is different", "choose another --output, or give --overwrite"
            )
        for path in new:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (temporary / path).open("rb+") as file:
                os.fsync(file.fileno())
            (temporary / path).replace(folder / path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not existed and not any(folder.iterdir()):
            folder.rmdir()


def _same(first: Path, second: Path) -> bool:
    return second.is_file() and filecmp.cmp(first, second, shallow=False)

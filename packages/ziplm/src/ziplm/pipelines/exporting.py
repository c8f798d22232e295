"""Exporting checkpoints: load, write the file, compare it with the checkpoint, put it into its place."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.checkpoint import load
from ziplm.architectures.exported import (
    ExportedDecoder,
    ExportedModel,
    exported_file,
    files_of,
    load_exported,
)
from ziplm.architectures.tokenizers import load_tokenizer
from ziplm.errors import BadCheckpoint, BadRun, UsageError
from ziplm.options.source import Source
from ziplm.results.family import read_family
from ziplm.results.status import read_status
from ziplm.runs.folder import Run
from ziplm.runs.progress import Reporter, Silent
from ziplm.stages.export import LoadedProgram, export_onnx, export_openvino, export_torch, require_extra
from ziplm.stages.export_check import Difference, check_exported, difference
from ziplm.stages.export_files import Format, files_placed, place_of, write_description
from ziplm.stages.export_graph import graph_of
from ziplm.stages.export_quantize import calibration_samples, quantize_onnx_best, quantize_openvino_file
from ziplm.tasks.embedding import read_sentences
from ziplm.tasks.sentence_folder import copy_settings, read_modules, read_settings

Samples = Sequence[Mapping[str, torch.Tensor]]
NO_TEXTS = Source()


@dataclass(frozen=True)
class Exported:
    """An exported file.

    Attributes:
        checkpoint: the checkpoint that it was made from.
        file: the file.
        format: its format: "onnx", "openvino" or "torch-export".
        quantize: "int8" for a quantised file, else None.
        scales: "dynamic" or "static" scales of a quantised file's activations, else None.
        difference: how far its outputs are from those of the checkpoint.
        bytes: size of the file, and of the file with its weights, if that is another one.
    """

    checkpoint: str
    file: Path
    format: Format
    quantize: str | None
    scales: str | None
    difference: Difference
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "file": str(self.file)}


def export_checkpoints(
    path: str,
    format: Format = "onnx",  # noqa: A002
    *,
    quantize: str | None = None,
    output: Path | None = None,
    calibration: Source = NO_TEXTS,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> list[Exported]:
    """Export a checkpoint, or every member of a run; see `ziplm.export`."""
    reporter = reporter or Silent()
    place_of(format, quantize)  # raises UsageError before anything is loaded
    require_extra("onnx" if format == "onnx" else format)
    export = partial(
        export_checkpoint,
        format=format,
        quantize=quantize,
        calibration=calibration,
        overwrite=overwrite,
    )
    made = []
    for checkpoint, folder in folders_of(path, output).items():
        with reporter.stage(f"export: {checkpoint}"):
            made.append(export(checkpoint, folder))
    return made


def folders_of(path: str, output: Path | None) -> dict[str, Path]:
    """Return the checkpoints that a path stands for, and the folder that each is exported to.

    Raises:
        BadRun: if a run has no member yet.
        UsageError: if the path is an exported file, or a name on the hub and no output is given.
    """
    folder = Path(path)
    if Run(folder).options_file.is_file() and not (folder / "config.json").is_file():
        family = read_family(Run(folder), read_status(Run(folder)).targets)
        if not family:
            raise BadRun(
                f"{path} has no finished member", f"resume it: ziplm status {path} shows how far it is"
            )
        return {str(m.folder): m.folder if output is None else output / m.folder.name for m in family}
    if exported_file(path) is not None:
        raise UsageError(f"{path} is exported already", "give the checkpoint that it was made from")
    if output is None and not folder.is_dir():
        if folder.exists():
            raise BadCheckpoint(f"{path} is not a folder", "give the folder of a checkpoint")
        raise UsageError(f"{path} is not a folder here", "give --output FOLDER to export a model of the hub")
    return {path: output or folder}


def export_checkpoint(
    checkpoint: str,
    folder: Path,
    *,
    format: Format,  # noqa: A002
    quantize: str | None = None,
    calibration: Source = NO_TEXTS,
    overwrite: bool = False,
) -> Exported:
    """Export one checkpoint to a folder, which may be its own."""
    model = load(checkpoint, dtype=torch.float32)
    _set_padding(model)
    tokenizer = _tokenizer(checkpoint)
    samples: Samples = ()
    if quantize is not None and calibration.validation_file is not None:
        samples = _samples(model, tokenizer, calibration)
    place = place_of(format, quantize)
    with files_placed(folder, overwrite) as temporary:
        made = temporary / place
        made.parent.mkdir()
        scales = write_file(model, made, format, quantize, samples)
        found = check_exported(model, open_exported(model, made), tokenizer, quantized=quantize is not None)
        if not _is_same_folder(checkpoint, folder):
            write_description(model, tokenizer, temporary)
            _copy_sentence_settings(checkpoint, temporary)
    size = sum(file.stat().st_size for file in files_of(folder / place))
    return Exported(checkpoint, folder / place, format, quantize, scales, found, size)


def write_file(
    model: PreTrainedModel,
    path: Path,
    format: Format,  # noqa: A002
    quantize: str | None = None,
    samples: Samples = (),
) -> str | None:
    """Write a model in a format, optionally as int8; return the kind of a quantised file's scales.

    Args:
        model: the model, in float32 on the CPU; it is not changed.
        path: the file to write, with the ending of its format.
        format: the format.
        quantize: "int8" to quantise.
        samples: inputs by name to calibrate with, which OpenVINO needs for int8.
    """
    if quantize is None:
        {"onnx": export_onnx, "openvino": export_openvino, "torch-export": export_torch}[format](model, path)
        return None
    if format == "openvino" and not samples:
        raise UsageError("int8 for OpenVINO needs samples of the inputs", "give --calibration-file")
    source = path.with_name(f"float32{path.suffix}")
    if format == "openvino":
        scales: str = quantize_openvino_file(export_openvino(model, source), path, samples)
    else:
        error = partial(_error, model)
        scales = quantize_onnx_best(export_onnx(model, source), path, samples, error)
    for file in files_of(source):
        file.unlink()
    return scales


def open_exported(model: PreTrainedModel, path: Path, threads: int | None = None) -> ExportedModel:
    """Open a file that was just made from a model."""
    if path.suffix != ".pt2":
        return load_exported(path, threads, model.config)
    loaded: Any = LoadedProgram(path, graph_of(model))
    return (ExportedDecoder if model.can_generate() else ExportedModel)(model.config, loaded, path)


def _error(model: PreTrainedModel, path: Path, samples: Samples) -> float:
    found = difference(model, open_exported(model, path), [dict(sample) for sample in samples])
    return found.relative if math.isfinite(found.relative) else math.inf


def _set_padding(model: PreTrainedModel) -> None:
    """Give GPT2 classifiers a padding token, which they need for batches, as tasks do."""
    config = model.config
    if config.pad_token_id is None and isinstance(config.eos_token_id, int) and not model.can_generate():
        config.pad_token_id = config.eos_token_id


def _tokenizer(checkpoint: str) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer; None if the checkpoint has none."""
    try:
        return load_tokenizer(checkpoint)
    except BadCheckpoint as error:
        if "has no tokenizer" in error.message:
            return None
        raise


def _samples(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, source: Source) -> Samples:
    if tokenizer is None:
        raise BadCheckpoint(
            "the checkpoint has no tokenizer", "save it beside the model to calibrate with text"
        )
    file = source.validation_file
    assert file is not None
    return calibration_samples(model, tokenizer, read_sentences(file, source).texts)


def _is_same_folder(checkpoint: str, folder: Path) -> bool:
    return Path(checkpoint).is_dir() and folder.exists() and Path(checkpoint).samefile(folder)


def _copy_sentence_settings(checkpoint: str, folder: Path) -> None:
    """Copy the settings of sentence-transformers, if the checkpoint has any."""
    if read_modules(checkpoint):
        pooling, _ = read_settings(checkpoint)
        copy_settings(checkpoint, folder, pooling or "mean")

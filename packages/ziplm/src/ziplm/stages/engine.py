"""Engines: how models run where they are measured, in torch or as exported files."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from latency_profiler import EagerEngine, Engine, resolve_engine
from torch import nn
from transformers import PreTrainedModel

from ziplm.architectures.exported import ExportedModel, files_of, load_exported
from ziplm.options.kinds import Quantize
from ziplm.options.setting import Setting
from ziplm.stages.export import export_onnx, export_openvino
from ziplm.stages.export_files import Format, place_of
from ziplm.stages.export_quantize import quantize_onnx_best, quantize_openvino_file

FORMATS: dict[str, Format] = {"onnxruntime": "onnx", "openvino": "openvino"}
"""Format of the files that each engine runs."""
Samples = Sequence[Mapping[str, torch.Tensor]]


class TableEngine:
    """The setting's engine for measuring a latency table: exported models in it run as they are.

    Args:
        setting: names the engine, its quantisation and its threads.
    """

    def __init__(self, setting: Setting) -> None:
        self._engine: Engine = resolve_engine(setting.engine, setting.quantize, setting.threads)
        self.name, self.quantize = setting.engine, setting.quantize
        self.threads = getattr(self._engine, "threads", None)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the engine's packages."""
        return self._engine.versions()

    def prepare(
        self, module: Callable[..., object], example_inputs: tuple[Any, ...]
    ) -> Callable[..., object]:
        """Prepare a module; an exported model and a function that runs one are prepared already."""
        if isinstance(module, nn.Module) and not isinstance(module, ExportedModel):
            return self._engine.prepare(module, example_inputs)
        return EagerEngine().prepare(module, example_inputs)


def run_in_engine(
    model: PreTrainedModel,
    setting: Setting,
    folder: Path,
    *,
    quantize: Quantize | None = None,
    samples: Samples = (),
) -> PreTrainedModel:
    """Return a model as the setting's engine runs it: the model itself in torch, or an exported file.

    Args:
        model: the model, in float32 on the CPU for engines that run files; it is not changed.
        setting: names the engine and its number of threads.
        folder: folder for the file, which must exist for as long as the result is used. A file that is there
            already is used.
        quantize: "int8" to quantise the file.
        samples: inputs by name to calibrate with, which OpenVINO needs for int8.
    """
    if not setting.runs_files:
        return model
    path = exported_path(folder, setting, quantize)
    if not path.is_file():
        write_exported(model, path, setting, quantize, samples)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]  # a model that was never saved does not say it
    return load_exported(path, setting.threads, config)


def exported_path(folder: Path, setting: Setting, quantize: Quantize | None) -> Path:
    """Return where a file for the setting's engine is in a folder, as servers expect it."""
    return folder / place_of(FORMATS[setting.engine], quantize)


def write_exported(
    model: PreTrainedModel, path: Path, setting: Setting, quantize: Quantize | None, samples: Samples
) -> None:
    """Write a model as a file for the setting's engine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    export = export_openvino if setting.engine == "openvino" else export_onnx
    if quantize is None:
        export(model, path)
        return
    source = export(model, path.with_name(f"float32{path.suffix}"))
    if setting.engine == "openvino":
        quantize_openvino_file(source, path, samples)
    else:
        quantize_onnx_best(source, path)
    for file in files_of(source):
        file.unlink()

"""Steps around the engine: models run as they will be served when they are measured and evaluated.

In torch, a model runs as it is. For other engines it is exported: the dense model once for all targets, each
candidate for as long as it is measured, and the finished model into the folder that is saved.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedModel

from ziplm.files import folder_written_whole
from ziplm.options.kinds import Quantize
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm.stages.engine import Samples, exported_path, run_in_engine, write_exported
from ziplm.stages.export_graph import file_inputs

MOST_SAMPLES = 64  # inputs to calibrate with, where int8 needs them


def dense_in_engine(start: Start, run: Run) -> PreTrainedModel:
    """Return the dense model as the engine runs it, never quantised; its file is kept in the run folder."""
    if not start.setting.runs_files:
        return start.dense
    folder = run.folder / "state" / "engine" / "dense"
    export_to(start, start.dense, folder, None)
    return run_in_engine(start.dense, start.setting, folder)


def export_to(start: Start, model: PreTrainedModel, folder: Path, quantize: Quantize | None) -> None:
    """Write the file of a model into a new folder, completely or not at all; an existing folder is kept."""
    if folder.exists():
        return
    with folder_written_whole(folder) as temporary:
        path = exported_path(temporary, start.setting, quantize)
        write_exported(model, path, start.setting, quantize, calibration_inputs(start))


def finished_in_engine(start: Start, model: PreTrainedModel, state: Path, run: Run) -> PreTrainedModel:
    """Return the finished model as the engine runs it; only the first process exports and runs it.

    The file is kept in the target's state until the member is saved; see `exported_folder`.
    """
    if not start.setting.runs_files or run.workers.rank > 0:
        return model
    folder = exported_folder(state)
    with run.stage("export"):
        export_to(start, model, folder, start.setting.quantize)
    return run_in_engine(model, start.setting, folder, quantize=start.setting.quantize)


def exported_folder(state: Path) -> Path:
    """Return the folder of a finished model's exported file, in the layout of a member's folder."""
    return state / "exported"


@contextmanager
def briefly_in_engine(start: Start, model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Yield a model as the engine runs it, quantised if that is asked for; its file is deleted afterwards."""
    setting = start.setting
    with tempfile.TemporaryDirectory() as folder:
        samples = calibration_inputs(start)
        yield run_in_engine(model, setting, Path(folder), quantize=setting.quantize, samples=samples)


def calibration_inputs(start: Start) -> Samples:
    """Return inputs by name, (1, tokens) each, for engines that fix the scales of activations by samples."""
    if start.setting.engine != "openvino" or start.setting.quantize is None:
        return ()
    chosen = start.samples.calibration[:MOST_SAMPLES]
    return [file_inputs(start.dense, start.task.collate([features])) for features in chosen]

"""The folder of a training: which training it belongs to, and which of its checkpoints are complete.

A checkpoint is complete if it has a file that lists all others with their hashes. Trainer writes some of them
in formats that can be checked in no other way before they are used.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from token_distill import DistillationLoss
from transformers import PreTrainedModel, TrainerState

from ziplm.errors import BadRun, UsageError
from ziplm.files import PARTIAL, believed, checked, read_json, write_json
from ziplm.options.training import TrainingOptions
from ziplm.tasks.base import Features

_WHOLE = "whole"  # a checkpoint without this file is incomplete
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


def identity(
    model: PreTrainedModel,
    features: Sequence[Features],
    options: TrainingOptions,
    loss: DistillationLoss | None,
    apart: Sequence[Features] = (),
) -> dict[str, Any]:
    """Return what must not change between a call and the one that resumes it, as JSON values."""
    identity = {
        "options": asdict(options),
        "loss": None if loss is None else asdict(loss),
        "examples": len(features),
        "samples kept apart": len(apart),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    unpacked: dict[str, Any] = json.loads(json.dumps(identity))
    return unpacked


def claim(folder: Path, training: dict[str, Any], is_first_process: bool) -> None:
    """Claim the folder for a training with this `identity`.

    Raises:
        UsageError: if it belongs to another training.
        BadRun: if it holds something else, or its record is damaged.
    """
    path = folder / "training.json"
    if path.exists():
        changed = checked(path, lambda found: _differences(found, training), read_json(path))
        if changed:
            raise UsageError(
                f"{folder} holds checkpoints of a training with other {', '.join(changed)}",
                "delete it to start again, or use another folder",
            )
    elif folder.exists() and any(not each.name.endswith(PARTIAL) for each in folder.iterdir()):
        raise BadRun(f"{folder} holds something else than a training", "use another folder")
    wait_for_everyone()  # all have looked
    if is_first_process and not path.exists():
        write_json(path, training)
    wait_for_everyone()


def _differences(found: dict[str, Any], training: dict[str, Any]) -> list[str]:
    return sorted(name for name in training if found.get(name) != training[name])


def last_whole(folder: Path, is_first_process: bool) -> Path | None:
    """Return the newest complete checkpoint; incomplete ones are removed, other files are left alone.

    Raises:
        BadRun: if a file of the checkpoint has changed since it was written.
    """
    checkpoints = _checkpoints(folder)
    whole = [path for path in checkpoints if (path / _WHOLE).exists()]
    wait_for_everyone()  # all have looked
    if is_first_process:
        for path in set(checkpoints) - set(whole):
            shutil.rmtree(path)
    wait_for_everyone()
    if not whole:
        return None
    _require_unchanged(whole[-1])
    return whole[-1]


def _checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints of the training, the oldest first."""
    numbers = {
        path: int(found[1])
        for path in folder.glob("checkpoint-*")
        if (found := _CHECKPOINT.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
    }
    return sorted(numbers, key=lambda path: numbers[path])


def wait_for_everyone() -> None:
    """Wait until all processes are here, if there are several."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def state_of(checkpoint: Path) -> TrainerState:
    """Read the state of the Trainer from a checkpoint."""
    path = checkpoint / "trainer_state.json"
    with believed(path):
        return TrainerState.load_from_json(str(path))


def mark_whole(checkpoint: Path, best_step: int | None = None) -> None:
    """Mark a checkpoint as complete, and remove all older ones but the last and the best.

    Trainer would remove them as well, but also folders of other names, and those that links point to.
    """
    write_json(checkpoint / _WHOLE, _digests(checkpoint))
    checkpoints = _checkpoints(checkpoint.parent)
    for older in checkpoints[: max(0, checkpoints.index(checkpoint) - 1)]:
        if older.name != f"checkpoint-{best_step}":
            shutil.rmtree(older)


def weights_of(folder: Path, step: int) -> Path:
    """Return the file with the weights of one of a training's checkpoints.

    Raises:
        BadRun: if the checkpoint is missing, or a file of it has changed since it was written.
    """
    checkpoint = folder / f"checkpoint-{step}"
    if not (checkpoint / _WHOLE).exists():
        raise BadRun(f"{checkpoint}, the best checkpoint, is missing", f"delete {folder} to train again")
    _require_unchanged(checkpoint)
    return checkpoint / "model.safetensors"


def _require_unchanged(checkpoint: Path) -> None:
    """Raise BadRun if a file of a complete checkpoint is missing or has changed."""
    written = checked(checkpoint / _WHOLE, dict, read_json(checkpoint / _WHOLE))
    found = _digests(checkpoint)
    if changed := [name for name in written if found.get(name) != written[name]]:
        raise BadRun(
            f"{checkpoint / changed[0]} is damaged", f"delete {checkpoint.name} and run the command again"
        )


def _digests(checkpoint: Path) -> dict[str, str]:
    """Return the hash of every file of a checkpoint, by its name."""
    digests = {}
    for path in sorted(checkpoint.iterdir()):
        if path.is_file() and path.name != _WHOLE:
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests

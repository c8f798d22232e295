"""The folder of a training: which training it belongs to, and which of its checkpoints are complete."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from token_distill import DistillationLoss
from transformers import PreTrainedModel, TrainerState

from ziplm.errors import UsageError
from ziplm.files import read_json, write_json
from ziplm.options.training import TrainingOptions
from ziplm.tasks.base import Features

_WHOLE = "whole"  # a checkpoint without this file is incomplete


def identity(
    model: PreTrainedModel,
    features: Sequence[Features],
    options: TrainingOptions,
    loss: DistillationLoss | None,
) -> dict[str, Any]:
    """Return what must not change between a call and the one that resumes it, as JSON values."""
    identity = {
        "options": asdict(options),
        "loss": None if loss is None else asdict(loss),
        "examples": len(features),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    unpacked: dict[str, Any] = json.loads(json.dumps(identity))
    return unpacked


def claim(folder: Path, training: dict[str, Any], is_first_process: bool) -> None:
    """Claim the folder for a training with this `identity`; raise UsageError if it belongs to another one."""
    path = folder / "training.json"
    if path.exists():
        found = read_json(path)
        changed = sorted(name for name in training if found.get(name) != training[name])
        if changed:
            raise UsageError(
                f"{folder} holds checkpoints of a training with other {', '.join(changed)}",
                "delete it to start again, or use another folder",
            )
    elif is_first_process:
        write_json(path, training)
    wait_for_everyone()


def last_whole(folder: Path, is_first_process: bool) -> Path | None:
    """Return the newest complete checkpoint; incomplete ones are removed."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in checkpoints if (path / _WHOLE).exists()]
    wait_for_everyone()  # all have looked
    if is_first_process:
        for path in set(checkpoints) - set(whole):
            shutil.rmtree(path)
    wait_for_everyone()
    return whole[-1] if whole else None


def wait_for_everyone() -> None:
    """Wait until all processes are here, if there are several."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def state_of(checkpoint: Path) -> TrainerState:
    """Read the state of the Trainer from a checkpoint."""
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def mark_whole(checkpoint: Path) -> None:
    """Mark a checkpoint as complete."""
    (checkpoint / _WHOLE).touch()

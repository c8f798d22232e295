"""The folder of a training: whose it is, and which of its checkpoints are whole."""

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
from ziplm.tasks.base import Features
from ziplm.training import TrainingOptions

_WHOLE = "whole"  # a checkpoint without this file was not written to its end


def identity(
    model: PreTrainedModel,
    features: Sequence[Features],
    options: TrainingOptions,
    loss: DistillationLoss | None,
) -> dict[str, Any]:
    """What must not change between a call and the one that goes on from its checkpoints, as JSON has it."""
    identity = {
        "options": asdict(options),
        "loss": None if loss is None else asdict(loss),
        "examples": len(features),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    unpacked: dict[str, Any] = json.loads(json.dumps(identity))
    return unpacked


def claim(folder: Path, identity: dict[str, Any], first: bool) -> None:
    """Make the folder this training's own, or raise if it is another's."""
    path = folder / "training.json"
    if path.exists():
        found = read_json(path)
        changed = sorted(name for name in identity if found.get(name) != identity[name])
        if changed:
            raise UsageError(
                f"{folder} holds checkpoints of a training with other {', '.join(changed)}",
                "delete it to start again, or use another folder",
            )
    elif first:
        write_json(path, identity)
    wait_for_everyone()


def last_whole(folder: Path, first: bool) -> Path | None:
    """The newest whole checkpoint; what was written after it, or not to its end, is removed."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in checkpoints if (path / _WHOLE).exists()]
    wait_for_everyone()  # all have looked
    if first:
        for path in set(checkpoints) - set(whole):
            shutil.rmtree(path)
    wait_for_everyone()
    return whole[-1] if whole else None


def wait_for_everyone() -> None:
    """Until all processes are here, if there are several."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def state_of(checkpoint: Path) -> TrainerState:
    """What Trainer noted in a checkpoint."""
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def mark_whole(checkpoint: Path) -> None:
    """Note that all of a checkpoint was written."""
    (checkpoint / _WHOLE).touch()

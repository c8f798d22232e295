"""Checkpoints: written completely or not at all, and checked before anything is allocated."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.network import from_hub
from ziplm.architectures.zip_classes import zip_classes
from ziplm.errors import BadCheckpoint, one_line
from ziplm.files import folder_written_whole


def save(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint that any user of transformers can load.

    The folder of a shrunk model contains the code it needs. If ziplm has been imported, the Auto classes load
    it directly; otherwise they need ``trust_remote_code=True``.

    Args:
        model: the model, dense or shrunk.
        folder: the folder to write; an existing checkpoint is replaced once everything is written.
        tokenizer: saved beside the model, if given.
        also: called with the temporary folder before it is renamed to `folder`, to add more files.

    Raises:
        BadCheckpoint: if something other than a checkpoint or an empty folder is in the way.
    """
    folder = Path(folder)
    if folder.is_symlink() or (folder.exists() and not _may_be_replaced(folder)):
        raise BadCheckpoint(
            f"{folder} exists and is not the folder of a checkpoint", "choose a new or empty folder"
        )
    with folder_written_whole(folder) as temporary:
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if also is not None:
            also(temporary)


def _may_be_replaced(folder: Path) -> bool:
    """Return whether a folder is empty or holds a checkpoint, so that saving there loses nothing else."""
    return folder.is_dir() and ((folder / "config.json").is_file() or not any(folder.iterdir()))


def load(path: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model, dense or shrunk, with the head it was saved with, in eval mode.

    Sizes and shapes are checked before anything is allocated. No code from the folder is run.

    Args:
        path: a folder, or the name of a model on the hub.
        options: options of `from_pretrained`, such as ``dtype=`` or ``attn_implementation=``.

    Raises:
        BadCheckpoint: if the checkpoint is missing, damaged, or of an unknown version or class.
    """
    config = read_config(path)
    model_class = model_class_of(path, config)
    if Path(path).is_dir():
        _check_shapes(Path(path), model_class, config)
    try:
        model = model_class.from_pretrained(path, **from_hub(path), **options)
    except (OSError, ValueError, RuntimeError, ImportError, safetensors.SafetensorError) as error:
        raise BadCheckpoint(f"{path} cannot be loaded: {one_line(error)}", "save it again") from error
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def read_config(path: str | Path) -> PreTrainedConfig:
    """Read and check the config of a checkpoint, without its weights."""
    if not Path(path).is_dir() and (Path(path).exists() or str(path).startswith((".", "/", "~"))):
        raise BadCheckpoint(
            f"{path} is not a folder", "give the folder of a checkpoint, or a name on the hub"
        )
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise BadCheckpoint(f"{path} has no config.json", "give the folder that holds it")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **from_hub(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if not Path(path).is_dir():
            raise BadCheckpoint(
                f"there is no folder {path}, and the hub gave no model of that name: {one_line(error)}",
                "check the name and the network",
            ) from error
        raise BadCheckpoint(
            f"the config of {path} is not usable: {one_line(error)}", "check config.json"
        ) from error
    assert isinstance(config, PreTrainedConfig)
    return config


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of a checkpoint's tensors from the headers of its files."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        shapes = {}
        for name in files:
            with safetensors.safe_open(folder / name, framework="pt") as file:
                shapes.update({key: tuple(file.get_slice(key).get_shape()) for key in file.keys()})  # noqa: SIM118
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise BadCheckpoint(
            f"the weights of {folder} cannot be read: {one_line(error)}", "save them again, as safetensors"
        ) from error
    return shapes


def model_class_of(path: str | Path, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class that a config names; it is one of ziplm or transformers, never from the folder."""
    if not config.architectures:
        raise BadCheckpoint(f"{path} does not name its class", "save it again with save_pretrained")
    name = config.architectures[0]
    found = zip_classes().get(name) or getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise BadCheckpoint(
            f"{path} is a model of class {name!r}, which is not known",
            "save it with a head that transformers knows",
        )
    return found


def _check_shapes(folder: Path, model_class: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Raise BadCheckpoint unless the files hold what the config promises; allocates no memory."""
    with torch.device("meta"):
        model = model_class(config)
    found = read_shapes(folder)
    tied = set(model.all_tied_weights_keys or {})
    prefix = f"{model.base_model_prefix}."
    for name, tensor in model.state_dict().items():
        shape = found.get(name) or found.get(name.removeprefix(prefix)) or found.get(prefix + name)
        # Checkpoints of shrunk models are complete; others may leave out what transformers initialises.
        if shape is None and model_class.__name__ in zip_classes() and name not in tied:
            raise BadCheckpoint(f"{folder} has no {name}", "save the checkpoint again")
        if shape is not None and shape != tuple(tensor.shape):
            raise BadCheckpoint(
                f"{name} in {folder} has shape {shape}, but its config says {tuple(tensor.shape)}",
                "save the checkpoint again",
            )

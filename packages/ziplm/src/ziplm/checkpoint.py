"""Checkpoints: written whole or not at all, and checked before anything is allocated."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import BadCheckpoint, one_line
from ziplm.models import AUTO_CLASSES, zip_class
from ziplm.network import from_hub


def save(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint that any user of transformers can load.

    A shrunk model's folder holds the code that it needs. With ziplm imported, the Auto classes load it as it
    is; without, with ``trust_remote_code=True``. An existing folder is replaced at the very end. `also` may
    add files: it is called with the folder that holds everything else, and will have this name.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if also is not None:
            also(temporary)
        temporary.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            folder.replace(old)
            temporary.replace(folder)
            shutil.rmtree(old)
        else:
            temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load(path: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model, dense or shrunk, with the head that it was saved with, in eval mode.

    Nothing is allocated before sizes and shapes are checked, and no code from the folder is run.

    Args:
        path: a folder, or a name on the hub.
        options: for `from_pretrained`, such as ``dtype=`` or ``attn_implementation=``.

    Raises:
        BadCheckpoint: if it is missing, damaged, of an unknown version, or of an unknown class.
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
    """The config of a checkpoint, checked; no weights are touched."""
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
    """Names and shapes of all tensors of a checkpoint in a folder, from the headers of its files."""
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
    """The class that a config names, from ziplm or transformers, never from the folder."""
    name = (config.architectures or ["nothing"])[0]
    found = zip_class(name) or getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise BadCheckpoint(
            f"{path} is a model of class {name!r}, which is not known", "save it with its head"
        )
    return found


def _check_shapes(folder: Path, model_class: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Raise unless the files hold what the config promises; the model made for this has no memory."""
    with torch.device("meta"):
        model = model_class(config)
    found = read_shapes(folder)
    tied = set(model.all_tied_weights_keys or {})
    prefix = f"{model.base_model_prefix}."
    for name, tensor in model.state_dict().items():
        shape = found.get(name) or found.get(name.removeprefix(prefix)) or found.get(prefix + name)
        if shape is None and model_class in AUTO_CLASSES and name not in tied:  # ours hold all they need
            raise BadCheckpoint(f"{folder} has no {name}", "save the checkpoint again")
        if shape is not None and shape != tuple(tensor.shape):
            raise BadCheckpoint(
                f"{name} in {folder} has shape {shape}, but its config says {tuple(tensor.shape)}",
                "save the checkpoint again",
            )

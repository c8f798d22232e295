"""Checkpoints: written completely or not at all, and checked before anything is allocated."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from ziplm.architectures.network import from_hub
from ziplm.architectures.untrusted import read_object, reported
from ziplm.architectures.weights import INDEX, WEIGHTS, check_counts, check_shapes, read_shapes
from ziplm.architectures.zip_classes import zip_classes
from ziplm.errors import BadCheckpoint
from ziplm.files import folder_written_whole

ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
"""Names under which a config may ask for an implementation of attention."""


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
    return load_as(path, model_class_of(path, config), config, **options)


def load_with_head(
    path: str | Path, auto_class: Any, settings: Mapping[str, Any], **options: Any
) -> PreTrainedModel:
    """Load a model with another head, whose weights are new unless the checkpoint has them; see `load`.

    Args:
        path: a folder, or the name of a model on the hub.
        auto_class: the Auto class of transformers for the head.
        settings: settings for the config, such as the names of the classes.
        options: options of `from_pretrained`.
    """
    config = read_config(path, **settings)
    with reported(f"{path} cannot have another head", "give a pretrained model"), torch.device("meta"):
        model_class = type(auto_class.from_config(config, trust_remote_code=False))
    return load_as(path, model_class, config, **settings, **options)


def load_with_new_head(
    path: str | Path, auto_class: Any, settings: Mapping[str, Any], **options: Any
) -> PreTrainedModel:
    """Load a model with a head whose weights are new, whatever head the checkpoint has; see `load_with_head`.

    The new weights are random, and depend on the state of torch's generator.
    """
    body = load_with_head(path, AutoModel, {}, **options)
    config = read_config(path, **settings)
    with reported(f"{path} cannot have another head", "give a pretrained model"):
        model = auto_class.from_config(config, trust_remote_code=False)
    assert isinstance(model, PreTrainedModel)
    found = model.base_model.load_state_dict(body.state_dict(), strict=False)  # some heads need no pooler
    if found.missing_keys:
        raise BadCheckpoint(f"{path} lacks {found.missing_keys[0]}", "give a pretrained model")
    return model.to(body.dtype).eval()  # type: ignore[arg-type]  # a decorator hides self


def load_as(
    path: str | Path, model_class: type[PreTrainedModel], config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    """Load a checkpoint as a model of a class, with the config that `read_config` found; see `load`."""
    if Path(path).is_dir():
        with torch.device("meta"):
            empty = build(path, model_class, config)
        check_shapes(Path(path), empty, complete=model_class.__name__ in zip_classes())
    with reported(f"{path} cannot be loaded", "save it again"):
        # Without use_safetensors, a name on the hub could stand for a pickle.
        model = model_class.from_pretrained(path, use_safetensors=True, **from_hub(path), **options)
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def build(path: str | Path, model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Return a new model; raise BadCheckpoint if its config is not that of a model."""
    with reported(f"the config of {path} is not usable", "check config.json"):
        return model_class(config)


def read_config(path: str | Path, **settings: Any) -> PreTrainedConfig:
    """Read and check the config of a checkpoint, without its weights.

    Args:
        path: a folder, or the name of a model on the hub.
        settings: values that replace those of the config.
    """
    found = _config_file(path)
    written = read_object(found)
    _check_written(written, path)
    has_weights = any((found.parent / name).is_file() for name in (WEIGHTS, INDEX))
    check_counts(written, read_shapes(found.parent) if has_weights else None, str(path))
    with reported(f"the config of {path} is not usable", "check config.json"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **from_hub(path), **settings)
    assert isinstance(config, PreTrainedConfig)
    return config


def _config_file(path: str | Path) -> Path:
    """Return the config of a folder, or of a model on the hub, which is downloaded if necessary."""
    if Path(path).is_dir():
        if not (Path(path) / "config.json").is_file():
            raise BadCheckpoint(f"{path} has no config.json", "give the folder that holds it")
        return Path(path) / "config.json"
    if Path(path).exists() or str(path).startswith((".", "/", "~")):
        raise BadCheckpoint(
            f"{path} is not a folder", "give the folder of a checkpoint, or a name on the hub"
        )
    with reported(
        f"there is no folder {path}, and the hub gave no model of that name", "check the name and the network"
    ):
        found = cached_file(str(path), "config.json", **from_hub(path))
    assert found is not None  # it raises an exception instead
    return Path(found)


def _check_written(settings: Mapping[str, Any], path: str | Path) -> None:
    """Raise BadCheckpoint if a config asks for code or weights from elsewhere."""
    for name in ATTENTION:
        value = settings.get(name)
        if value is not None and (not isinstance(value, str) or not value.isidentifier()):
            raise BadCheckpoint(
                f"{name} is {value!r:.40} in the config of {path}, which is no name of an implementation",
                "remove it from config.json, and choose one with --attention",
            )
    names = settings.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadCheckpoint(
            f"architectures is {names!r:.40} in the config of {path}", "give a list with the name of a class"
        )
    if wrong := [
        name for name, value in settings.items() if isinstance(value, float) and not math.isfinite(value)
    ]:
        raise BadCheckpoint(
            f"{wrong[0]} is {settings[wrong[0]]} in the config of {path}", "correct config.json"
        )
    if settings.get("transformers_weights") is not None:
        raise BadCheckpoint(
            f"transformers_weights in the config of {path} names other weights", f"use {WEIGHTS}"
        )
    if (Path(path) / "adapter_config.json").exists():
        raise BadCheckpoint(f"{path} holds an adapter, not a whole model", "merge it into its model first")


def model_class_of(path: str | Path, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class that a config names; it is one of ziplm or transformers, never from the folder."""
    if not config.architectures:
        raise BadCheckpoint(f"{path} does not name its class", "save it again with save_pretrained")
    name = str(config.architectures[0])
    found = zip_classes().get(name)
    if found is None:
        with reported(f"{path} is a model of class {name!r}, which cannot be imported", "check config.json"):
            found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise BadCheckpoint(
            f"{path} is a model of class {name!r}, which is not known",
            "save it with a head that transformers knows",
        )
    if found.config_class is None or not isinstance(config, found.config_class):
        raise BadCheckpoint(
            f"{path} is a model of class {name!r}, but has the type {config.model_type!r}",
            "save the checkpoint again",
        )
    return found

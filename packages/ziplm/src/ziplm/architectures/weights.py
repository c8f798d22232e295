"""The weights of a checkpoint: which files hold them, and whether their shapes are those of the model."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from transformers import PreTrainedModel

from ziplm.architectures.untrusted import inside, read_object, reported
from ziplm.errors import BadCheckpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
MOST_LAYERS, MOST_OTHERS = 1000, 10**6  # where there are no weights to compare with
COUNTS = {
    "num_hidden_layers": "layers",
    "n_layer": "layers",
    "n_layers": "layers",
    "num_layers": "layers",
    "num_labels": "labels",
    "_num_labels": "labels",
    "num_attention_heads": "heads",
    "num_key_value_heads": "heads",
    "n_head": "heads",
    "n_heads": "heads",
}
"""Numbers in a config of what is built one by one, or in which a tensor is divided, and what they count."""

Shapes = Mapping[str, tuple[int, ...]]


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a checkpoint's weights; raise BadCheckpoint if they are not safetensors."""
    if (folder / WEIGHTS).is_file():  # like transformers, before the index
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = read_object(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise BadCheckpoint(f"{folder / INDEX} has no weight_map", "save the weights again")
        found = {inside(folder, name, f"weight_map of {INDEX}") for name in names.values()}
        if missing := [file for file in sorted(found) if not file.is_file()]:
            raise BadCheckpoint(f"the weights of {folder} cannot be read: no {missing[0]}", "save them again")
        return sorted(found)
    if pickles := [name for name in PICKLES if (folder / name).exists()]:
        raise BadCheckpoint(
            f"the weights of {folder} are a pickle ({pickles[0]}), which can run code when it is loaded",
            "if you trust its source, load it with transformers once and write it with save_pretrained",
        )
    raise BadCheckpoint(
        f"the weights of {folder} cannot be read: there is no {WEIGHTS}", "save them again, as safetensors"
    )


def read_shapes(folder: Path) -> Shapes:
    """Read the names and shapes of a checkpoint's tensors from the headers of its files."""
    shapes = {}
    for path in weight_files(folder):
        with (
            reported(f"the weights of {folder} cannot be read", "save them again, as safetensors"),
            safetensors.safe_open(path, framework="pt") as file,
        ):
            shapes.update({key: tuple(file.get_slice(key).get_shape()) for key in file.keys()})  # noqa: SIM118
    return shapes


def check_counts(settings: Mapping[str, Any], shapes: Shapes | None, where: str) -> None:
    """Raise BadCheckpoint if a config asks for more layers, labels or heads than the weights can have.

    It is called before anything is built: a list of 10^12 labels would never be finished.

    Args:
        settings: content of config.json.
        shapes: shapes of all tensors; None if the weights are not here.
        where: the checkpoint, for the error message.
    """
    largest = max((size for shape in shapes.values() for size in shape), default=0) if shapes else 0
    most = {"layers": len(shapes or ()) or MOST_LAYERS}
    for name, value in settings.items():
        if isinstance(value, dict):  # the config of a part
            check_counts(value, shapes, where)
        elif name in COUNTS and value is not None:
            limit = most.get(COUNTS[name], largest or MOST_OTHERS)
            if type(value) is not int or not (COUNTS[name] == "heads") <= value <= limit:
                raise BadCheckpoint(
                    f"{name} is {value!r:.40} in the config of {where}, but its weights allow only {limit}",
                    "correct config.json",
                )


def check_shapes(folder: Path, model: PreTrainedModel, complete: bool) -> None:
    """Raise BadCheckpoint unless the files hold what a model on the meta device needs.

    Args:
        folder: folder of the checkpoint.
        model: the model, without memory for its weights.
        complete: whether all weights must be there, as in checkpoints of shrunk models. transformers
            initialises weights that are missing, but these must not be larger than all others together.
    """
    found = read_shapes(folder)
    room = sum(math.prod(shape) for shape in found.values())
    tied = set(model.all_tied_weights_keys or {})
    prefix = f"{model.base_model_prefix}."
    for name, tensor in model.state_dict().items():
        shape = found.get(name) or found.get(name.removeprefix(prefix)) or found.get(prefix + name)
        if shape is None and name not in tied:
            if complete:
                raise BadCheckpoint(f"{folder} has no {name}", "save the checkpoint again")
            room -= tensor.numel()
            if room < 0:
                raise BadCheckpoint(
                    f"{folder} has no {name} of shape {tuple(tensor.shape)}, for which its config asks",
                    "correct config.json, or save the checkpoint again",
                )
        if shape is not None and shape != tuple(tensor.shape):
            raise BadCheckpoint(
                f"{name} in {folder} has shape {shape}, but its config says {tuple(tensor.shape)}",
                "save the checkpoint again",
            )

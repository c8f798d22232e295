"""Paths among the options: relative to a config file, or absolute."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ziplm.options.options import Options

PATHS = ("train_file", "validation_file", "eval_file", "latency_table", "output")
"""Options that are always paths; the model may also be a name on the hub."""


def relative_to(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file in this folder, with relative paths joined to the folder.

    A model is a path if the folder holds one of that name.
    """
    joined = {
        name: str(folder / value)
        for name in PATHS
        if isinstance(value := values.get(name), str) and value and not value.startswith("~")
    }
    model = values.get("model")
    if (
        isinstance(model, str)
        and "\0" not in model
        and not model.startswith("~")
        and (folder / model).is_dir()
    ):
        joined["model"] = str(folder / model)
    return {**values, **joined}


def with_absolute_paths(options: Options) -> Options:
    """Return options that mean the same in every working directory."""
    absolute = {
        name: str(Path(path).expanduser().absolute()) for name in PATHS if (path := getattr(options, name))
    }
    if (model := Path(options.model).expanduser()).is_dir():
        absolute["model"] = str(model.absolute())
    return options.model_copy(update=absolute)

"""Settings that sentence-transformers stores beside a model: pooling and maximum input length."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from transformers.utils.hub import cached_file

from ziplm.architectures.checkpoint import read_config
from ziplm.architectures.network import from_hub
from ziplm.architectures.untrusted import inside, read_object, read_untrusted
from ziplm.errors import BadCheckpoint
from ziplm.files import write_json, written_whole

Pooling = Literal["mean", "cls"]
POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
SETTINGS = "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]


def copy_settings(source: str | Path, target: str | Path, pooling: Pooling) -> None:
    """Copy the files that let sentence-transformers open a checkpoint.

    If the source has no such files, they are created.

    Args:
        source: folder of the model, or its name on the hub.
        target: folder of the checkpoint that the files are written to.
        pooling: pooling of the target; it replaces that of the source.
    """
    modules = read_modules(source)
    if not modules:
        _write_pooling(Path(target), POOLING_FOLDER, {}, pooling)
        write_json(Path(target) / "modules.json", MODULES)
        return
    saved, _ = read_settings(source)
    folders = [module["path"] for module in modules if module["path"]]
    for name in (
        SETTINGS,
        "config_sentence_transformers.json",
        *(f"{folder}/config.json" for folder in folders),
    ):
        _copy(source, target, name)
    for module in modules:
        if module["type"].endswith("Pooling") and saved != pooling:
            settings = _read_object(source, f"{module['path']}/config.json")
            _write_pooling(Path(target), module["path"], settings, pooling)
    _copy(source, target, "modules.json")  # last, because it refers to the other files


def read_modules(path: str | Path) -> list[dict[str, Any]]:
    """Read the modules of a sentence-transformers folder or repository; empty for any other model.

    Raises:
        BadCheckpoint: if the file is damaged, or names a path that leaves its folder.
    """
    file = _find(path, "modules.json")
    modules = [] if file is None else read_untrusted(file)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise BadCheckpoint(f"{file} does not hold a list of modules", "correct the file")
    found = [{"path": "", "type": "", **module} for module in modules]
    for module in found:
        assert file is not None
        inside(file.parent, module["path"], str(file))
        if not isinstance(module["type"], str):
            raise BadCheckpoint(f"{file} has a module of type {module['type']!r:.40}", "correct the file")
    return found


def read_settings(path: str | Path) -> tuple[Pooling | None, int | None]:
    """Read the settings of sentence-transformers.

    Returns:
        The pooling and the maximum input length, in tokens; each None if it is not stored beside the model.

    Raises:
        BadCheckpoint: if the pooling or a module is not supported, or a file is not JSON.
    """
    pooling: Pooling | None = None
    for module in read_modules(path):
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            settings = _read_object(path, f"{module['path']}/config.json")
            try:
                json.dumps(settings, allow_nan=False)
            except ValueError:
                raise BadCheckpoint(
                    f"{module['path']}/config.json of {path} has a number that is not finite",
                    "save the model again",
                ) from None
            modes = [
                key for key, value in settings.items() if key.startswith("pooling_mode") and value is True
            ]
            if len(modes) != 1 or modes[0] not in POOLINGS:
                raise BadCheckpoint(
                    f"{path} pools by {' and '.join(modes) or 'nothing'}", "only mean and cls are known"
                )
            pooling = POOLINGS[modes[0]]
        elif kind not in ("Transformer", "Normalize"):
            raise BadCheckpoint(
                f"{path} has a module {kind}", "give a model that is only a transformer and a pooling"
            )
    longest = _read_object(path, SETTINGS).get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise BadCheckpoint(
            f"max_seq_length is {longest!r:.40} in {SETTINGS} of {path}", "give a whole number from 1 up"
        )
    return pooling, longest


def _find(path: str | Path, name: str) -> Path | None:
    """Return the path of a file in a folder or in a repository on the hub; None if it does not exist."""
    if Path(path).is_dir():
        return Path(path) / name if (Path(path) / name).is_file() else None
    try:
        found = cached_file(
            str(path),
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **from_hub(path),
        )
    except OSError:
        return None
    return Path(found) if found else None


def _read_object(path: str | Path, name: str) -> dict[str, Any]:
    """Read an object from a file of a folder or repository; it is empty if there is no such file."""
    file = _find(path, name)
    return {} if file is None else read_object(file)


def _write_pooling(target: Path, folder: str, settings: dict[str, Any], pooling: Pooling) -> None:
    modes = {mode: name == pooling for mode, name in POOLINGS.items()}
    hidden = read_config(target).hidden_size
    write_json(target / folder / "config.json", {"word_embedding_dimension": hidden, **settings, **modes})


def _copy(source: str | Path, target: str | Path, name: str) -> None:
    file = _find(source, name)
    if file is not None:
        with written_whole(Path(target) / name) as temporary:
            shutil.copyfile(file, temporary)

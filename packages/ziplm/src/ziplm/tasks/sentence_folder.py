"""What sentence-transformers keeps beside a model: how to pool, how long inputs may be."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from transformers.utils.hub import cached_file

from ziplm.checkpoint import read_config
from ziplm.errors import BadCheckpoint, one_line
from ziplm.files import write_json, written_whole
from ziplm.network import from_hub

Pooling = Literal["mean", "cls"]
POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
SETTINGS = "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": "sentence_transformers.models.Pooling"},
]


def copy_settings(source: str | Path, target: str | Path, pooling: Pooling) -> None:
    """Copy all of it, so that the target, a checkpoint, opens in sentence-transformers as the source does.

    A source that is none of its folders becomes one.
    """
    modules = read_modules(source)
    if not modules:
        _write_pooling(Path(target), POOLING_FOLDER, {}, pooling)
        write_json(Path(target) / "modules.json", MODULES)
        return
    folders = [module["path"] for module in modules if module["path"]]
    for name in (
        SETTINGS,
        "config_sentence_transformers.json",
        *(f"{folder}/config.json" for folder in folders),
    ):
        _copy(source, target, name)
    for module in modules:
        if module["type"].endswith("Pooling") and read_settings(source)[0] != pooling:
            settings = _read_json(source, f"{module['path']}/config.json")
            _write_pooling(Path(target), module["path"], settings, pooling)
    _copy(source, target, "modules.json")  # last: it refers to the others


def read_modules(path: str | Path) -> list[dict[str, Any]]:
    """The list of modules of a sentence-transformers folder or repository; none if it is not one."""
    modules = _read_json(path, "modules.json")
    return [{"path": "", "type": "", **module} for module in modules] if modules else []


def read_settings(path: str | Path) -> tuple[Pooling | None, int | None]:
    """Pooling and longest input that sentence-transformers keeps beside a model, if it does."""
    pooling: Pooling | None = None
    for module in read_modules(path):
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            settings = _read_json(path, f"{module['path']}/config.json") or {}
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
                f"{path} has a module {kind}", "give a model of transformer and pooling alone"
            )
    longest = (_read_json(path, SETTINGS) or {}).get("max_seq_length")
    return pooling, longest


def _find(path: str | Path, name: str) -> Path | None:
    """A file of a folder or of a repository on the hub."""
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


def _read_json(path: str | Path, name: str) -> Any:
    file = _find(path, name)
    if file is None:
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadCheckpoint(f"{file} is not JSON: {one_line(error)}", "mend it") from error


def _write_pooling(target: Path, folder: str, settings: dict[str, Any], pooling: Pooling) -> None:
    modes = {mode: name == pooling for mode, name in POOLINGS.items()}
    hidden = read_config(target).hidden_size
    write_json(target / folder / "config.json", {"word_embedding_dimension": hidden, **settings, **modes})


def _copy(source: str | Path, target: str | Path, name: str) -> None:
    file = _find(source, name)
    if file is not None:
        with written_whole(Path(target) / name) as temporary:
            shutil.copyfile(file, temporary)

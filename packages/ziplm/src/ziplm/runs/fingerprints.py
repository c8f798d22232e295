"""Fingerprints of what a run starts from: a run is not continued with another model or other data.

Files are fingerprinted by their contents. Their size and time would be faster, but tools that copy files keep
both; reading a gigabyte takes about a second.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ziplm.errors import BadRun
from ziplm.files import checked, damaged, read_json, write_json
from ziplm.options.options import Options
from ziplm.runs.contents import has_results
from ziplm.runs.folder import Run

FILES = ("train_file", "validation_file", "eval_file", "latency_table")
"""Options that name files."""
OF_MODEL = " of the model"
"""How the names of the files in a model's folder end among the fingerprints."""
_ON_THE_HUB = "model on the hub"
_MODEL_FILES = (
    "*.safetensors",
    "*.bin",
    "*.model",  # sentencepiece
    "config.json",
    "*/config.json",  # pooling of a sentence embedder
    "modules.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)


def file_fingerprints(options: Options) -> dict[str, str]:
    """Return fingerprints of the files that options name; what is missing is reported where it is loaded."""
    named = {name: Path(path).expanduser() for name in FILES if (path := getattr(options, name))}
    found = {name: _digest(path) for name, path in named.items() if path.is_file()}
    folder = Path(options.model).expanduser()
    if not folder.is_dir():
        return found | _cached_commit(options.model)
    names = sorted({path for pattern in _MODEL_FILES for path in folder.glob(pattern) if path.is_file()})
    return found | {f"{path.relative_to(folder).as_posix()}{OF_MODEL}": _digest(path) for path in names}


def hub_fingerprint(commit: str | None) -> dict[str, str]:
    """Return the fingerprint of a model on the hub, which is its commit, if it is known."""
    return {} if commit is None else {_ON_THE_HUB: commit}


def _cached_commit(model: str) -> dict[str, str]:
    """Return the commit of a model in the cache of the hub; it may change when the model is loaded."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(model, "config.json")
    except ValueError:  # not the name of a model; loading it says so
        return {}
    return hub_fingerprint(Path(path).parent.name if isinstance(path, str) else None)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_fingerprints(run: Run, found: Mapping[str, str], at_start: bool = True) -> None:
    """Compare fingerprints with those of earlier commands in the run folder, and keep them.

    Before the run has results, anything may change: a command that failed because of its data is repeated
    with better data.

    Args:
        run: the run; if this process has not locked it, nothing is written.
        found: fingerprints by what they are of.
        at_start: whether a command starts, so that the fingerprints of commands without results are dropped.

    Raises:
        BadRun: if a model or data changed since the run was started.
    """
    before = {} if at_start and not has_results(run) else known_fingerprints(run)
    if changed := changes(before, found):
        raise changed_inputs(run, changed)
    if at_start and before and found.keys() - before.keys() - {_ON_THE_HUB}:
        raise damaged(run.fingerprints_file)  # the command that made the results knew all of these
    if run.lock is not None and before != {**before, **found}:
        write_json(run.fingerprints_file, {**before, **found})


def changed_inputs(run: Run, changed: Iterable[str]) -> BadRun:
    """Return the error for inputs that changed."""
    return BadRun(
        f"{', '.join(changed)} changed since the run in {run.folder} was started",
        "give the same, or choose another output",
    )


def known_fingerprints(run: Run) -> dict[str, str]:
    """Read the fingerprints of a run; raise BadRun if they are damaged, or missing beside results."""
    if run.fingerprints_file.exists():
        return checked(run.fingerprints_file, _as_texts, read_json(run.fingerprints_file))
    if has_results(run):
        raise BadRun(
            f"{run.fingerprints_file} is missing, so that nobody knows which model and data the run is of",
            "choose another output",
        )
    return {}


def changes(before: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names whose fingerprints changed; files added to or removed from a model's folder count."""
    of_model = {name for name in found if name.endswith(OF_MODEL)}
    known_of_model = {name for name in before if name.endswith(OF_MODEL)}
    compared: Iterable[str] = [name for name in found if name in before and name not in of_model]
    if of_model and known_of_model:
        compared = [*compared, *sorted(of_model | known_of_model)]
    return [name for name in compared if before.get(name) != found.get(name)]


def _as_texts(document: Any) -> dict[str, str]:
    if not document or not all(isinstance(value, str) for value in document.values()):
        raise ValueError("fingerprints are texts")
    return dict(document)

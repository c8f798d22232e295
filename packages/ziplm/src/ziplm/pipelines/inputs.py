"""Models and data given in memory: they are stored in the run folder, so that the run can be resumed."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.checkpoint import save
from ziplm.errors import UsageError
from ziplm.files import written_whole
from ziplm.options.options import Options
from ziplm.pipelines.values import Samples
from ziplm.runs.contents import has_results
from ziplm.runs.fingerprints import (
    changed_inputs,
    changes,
    file_fingerprints,
    hub_fingerprint,
    keep_fingerprints,
    known_fingerprints,
)
from ziplm.runs.folder import Run

FILES = ("train_file", "validation_file", "eval_file")
"""The options that take data in memory, too."""


@dataclass(frozen=True)
class Inputs:
    """Inputs given in memory rather than by name or path.

    Attributes:
        model: the dense model; None if it was given by name.
        tokenizer: its tokenizer.
        data: examples by option, such as "train_file": mappings from column names to values.
    """

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    data: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)

    def paths(self, output: Path) -> dict[str, str]:
        """Return the options that refer to the inputs by their paths in the run folder."""
        paths = {name: str(_data_file(output, name)) for name in self.data}
        return paths if self.model is None else {**paths, "model": str(_model_folder(output))}

    def store(self, run: Run) -> dict[str, str]:
        """Write the inputs into the run folder, unless they are there from the interrupted run.

        Returns:
            Their fingerprints.

        Raises:
            BadRun: if they have changed since the run was started.
            UsageError: if a value cannot be written as JSON.
        """
        texts = {name: _as_lines(name, rows) for name, rows in self.data.items()}
        found = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        if self.model is not None and self.tokenizer is not None:
            found |= {"model": _model_fingerprint(self.model), "tokenizer": _vocabulary(self.tokenizer)}
        before = known_fingerprints(run) if has_results(run) else {}
        if changed := changes(before, found):
            raise changed_inputs(run, changed)
        if found.keys() - before.keys():
            for name, text in texts.items():
                with written_whole(_data_file(run.folder, name)) as temporary:
                    temporary.write_bytes(text.encode())  # whose hash is the fingerprint, also as a file
            if self.model is not None:
                save(self.model, _model_folder(run.folder), self.tokenizer)
        return found


def keep_inputs(run: Run, options: Options, inputs: Inputs) -> None:
    """Store inputs in memory, and check that these and all files are those that the run was started with."""
    in_memory = inputs.store(run)
    keep_fingerprints(run, {**in_memory, **file_fingerprints(options)})


def keep_loaded(run: Run, options: Options, dense: PreTrainedModel, samples: Samples) -> None:
    """Check what has no files: a model on the hub by its commit, a dataset on the hub by its samples."""
    commit = getattr(dense.config, "_commit_hash", None)
    found = {} if Path(options.model).expanduser().is_dir() else hub_fingerprint(commit)
    if not options.source.has_files:
        drawn = [samples.calibration, samples.search, samples.judging]
        text = json.dumps(drawn, default=str, sort_keys=True)
        found["samples of the dataset"] = hashlib.sha256(text.encode()).hexdigest()
    run.workers.first(lambda: keep_fingerprints(run, found, at_start=False))


def inputs_in_memory(said: Mapping[str, Any], tokenizer: Any) -> Inputs:
    """Separate what is given in memory from names and paths."""
    model = None if isinstance(said["model"], str | Path | None) else said["model"]
    if model is not None and tokenizer is None:
        raise UsageError("a loaded model is given without its tokenizer", "give tokenizer=…")
    if model is None and tokenizer is not None:
        raise UsageError("a tokenizer is given without a loaded model", "give the model, or leave it out")
    names = [name for name in FILES if not isinstance(said.get(name), str | Path | None)]
    return Inputs(model, tokenizer, {name: said[name] for name in names})


def _data_file(output: Path, name: str) -> Path:
    return Run(output).inputs_folder / f"{name.removesuffix('_file')}.jsonl"


def _model_folder(output: Path) -> Path:
    return Run(output).inputs_folder / "model"


def _as_lines(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return examples as JSON lines."""
    try:
        lines = [json.dumps(dict(row), ensure_ascii=False) for row in rows]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"an example of {name} cannot be stored: {error}",
            "give mappings of text, numbers and lists",
        ) from error
    return "".join(f"{line}\n" for line in lines)


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer's vocabulary."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _model_fingerprint(model: PreTrainedModel) -> str:
    """Return a hash of a model's class and weights."""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

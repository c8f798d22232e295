"""Tokenizers of checkpoints, which are as little trusted as their weights."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ziplm.architectures.network import from_hub
from ziplm.architectures.untrusted import inside, read_object, reported
from ziplm.errors import BadCheckpoint

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
SETTINGS = "tokenizer_config.json"
OBJECTS = ("tokenizer.json", "vocab.json", "special_tokens_map.json", "added_tokens.json")
"""Files of JSON that transformers reads, besides the settings."""


def load_tokenizer(path: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint, without running code from its folder.

    Args:
        path: a folder, or the name of a model on the hub.
        options: options of `from_pretrained`.

    Raises:
        BadCheckpoint: if the tokenizer is missing or cannot be loaded.
    """
    if Path(path).is_dir():
        _check_files(Path(path))
    with reported(f"the tokenizer of {path} cannot be loaded", "save it beside the model again"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **from_hub(path), **options)
        tokenizer("a")  # some damage shows only when it is used
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _check_files(folder: Path) -> None:
    """Raise BadCheckpoint if there is no vocabulary, or a file is damaged or names another elsewhere."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        # Without these files, transformers 5 would return a tokenizer with an empty vocabulary.
        raise BadCheckpoint(
            f"{folder} has no tokenizer", "save it beside the model: tokenizer.save_pretrained(folder)"
        )
    for name in OBJECTS:
        if (folder / name).is_file():
            read_object(folder / name)
    settings = read_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    for name, value in settings.items():
        if name.endswith("_file") and value is not None:
            inside(folder, value, f"{name} in {SETTINGS}")

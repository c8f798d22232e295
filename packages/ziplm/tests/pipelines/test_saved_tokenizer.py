"""The tokenizer of a member is that of the dense model, without traces of the calibration."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from ziplm import compress
from ziplm_compressed import LENGTH, options_for, write_files


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_saved_tokenizer_truncates_nothing(name: str, tmp_path: Path) -> None:
    files = write_files(tmp_path / "files")
    options = options_for(files, name, tmp_path / "run", speedup=[2], evaluations=0, refit=False)
    (member,) = compress(**options)
    saved = json.loads((member.folder / "tokenizer.json").read_text())
    assert saved["truncation"] is None
    assert saved["padding"] is None
    text = " ".join("abc" * LENGTH)
    ids = AutoTokenizer.from_pretrained(member.folder)(text, verbose=False)["input_ids"]
    assert ids == AutoTokenizer.from_pretrained(files / name)(text, verbose=False)["input_ids"]
    assert len(ids) > LENGTH

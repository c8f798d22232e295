"""The files of sentence-transformers beside a model are not trusted, least of all with paths."""

import json
from pathlib import Path
from typing import Any

import pytest
from ziplm import BadCheckpoint, save
from ziplm.tasks.sentence_folder import copy_settings, read_settings
from ziplm_models import tiny_model

POOLING = "sentence_transformers.models.Pooling"


def sentence_model(folder: Path, path: Any) -> Path:
    """Write a model whose pooling is said to be at `path`."""
    save(tiny_model("BertModel"), folder)
    copy_settings(folder, folder, "mean")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_no_path_of_a_file_leads_out_of_the_checkpoint(tmp_path: Path, absolute: bool, pooling: Any) -> None:
    """Version 0.1 wrote config.json there, and changed the mode of a private file."""
    for name in ("models/escaped", "runs/escaped"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (tmp_path / name / "config.json").chmod(0o600)
    path = str(tmp_path / "models/escaped") if absolute else "../escaped"
    source = sentence_model(tmp_path / "models/source", path)
    save(tiny_model("BertModel"), tmp_path / "runs/target")
    before = everything(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"modules.json.*escaped"):
        copy_settings(source, tmp_path / "runs/target", pooling)
    with pytest.raises(BadCheckpoint, match=r"modules.json.*escaped"):
        read_settings(source)
    assert everything(tmp_path) == before


def test_a_linked_folder_leads_out_as_well(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    source = sentence_model(tmp_path / "source", "inside")
    (source / "inside").symlink_to(tmp_path / "private")
    with pytest.raises(BadCheckpoint, match=r"inside"):
        read_settings(source)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", "3"),
        ("modules.json", '{"path": ""}'),
        ("modules.json", "[3]"),
        ("modules.json", '[{"path": 3, "type": "x.Pooling"}]'),
        ("modules.json", '[{"path": "a\\u0000b", "type": "x.Pooling"}]'),
        ("modules.json", '[{"path": "", "type": 3}]'),
        ("modules.json", "[" * 100_000),
        ("modules.json", "9" * 5000),
        ("1_Pooling/config.json", "[]"),
        ("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true, "x": NaN}'),
        ("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true, "x": [-Infinity]}'),
        ("1_Pooling/config.json", '{"pooling_mode_\\ud800": true}'),
        ("sentence_bert_config.json", "[]"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}'),
        ("sentence_bert_config.json", '{"max_seq_length": -3}'),
        ("sentence_bert_config.json", '{"max_seq_length": 1.5}'),
    ],
)
def test_damaged_settings_are_a_bad_checkpoint(tmp_path: Path, file: str, content: str) -> None:
    source = sentence_model(tmp_path / "source", "1_Pooling")
    (source / file).write_text(content)
    with pytest.raises(BadCheckpoint, match=file):
        read_settings(source)
    save(tiny_model("BertModel"), tmp_path / "target")
    with pytest.raises(BadCheckpoint, match=file):
        copy_settings(source, tmp_path / "target", "cls")

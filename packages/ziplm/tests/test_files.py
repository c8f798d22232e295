"""Files appear complete under their final name, or not at all."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ziplm import BadRun
from ziplm.files import failed_writes_as_os_errors, read_json, write_json, written_whole


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


DAMAGED = [b"", b"{", b"\xff\xfe", b'{"a": 1}}', b"[" * 100_000, b"9" * 5000, b'"\\ud800"', b'{"\\uDC00": 1}']


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_document_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "found.json"
    write_json(path, {"a": [1, 2.5, None, "é"]})
    assert read_json(path) == {"a": [1, 2.5, None, "é"]}
    path.write_bytes(damage)
    with pytest.raises(BadRun, match=r"found.json is damaged; delete it and run the command again"):
        read_json(path)


def test_escaped_pairs_of_surrogates_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('"\\ud83d\\ude00 \\\\ud800"')
    assert read_json(tmp_path / "a.json") == "\N{GRINNING FACE} \\ud800"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "found.json"
    write_json(path, {"a": 1})

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_json(path, {"a": 2})
    monkeypatch.undo()
    assert read_json(path) == {"a": 1}
    assert names_in(tmp_path) == ["found.json"]


def test_an_interrupted_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    def write(path: Path, then: Callable[[], None]) -> None:
        with written_whole(path) as temporary:
            temporary.write_text("half")
            then()

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "deep" / "a.txt", fail)
    assert names_in(tmp_path / "deep") == []
    write(tmp_path / "deep" / "a.txt", lambda: None)
    assert names_in(tmp_path / "deep") == ["a.txt"]
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "nan.json", json.loads("NaN"))
    assert not (tmp_path / "nan.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_inside_torch_is_a_failed_write() -> None:
    """torch.save itself raises a RuntimeError about positions; other RuntimeErrors stay what they are."""
    with pytest.raises(OSError, match="could not be written"), failed_writes_as_os_errors():
        torch.save(torch.ones(10_000), "/dev/full")
    with pytest.raises(RuntimeError, match="mine"), failed_writes_as_os_errors():
        raise RuntimeError("mine")

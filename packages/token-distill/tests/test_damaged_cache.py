"""The teacher's cache on disk: what is damaged is computed again, and files are durable."""

import logging
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from token_distill import Teacher
from token_distill_counting import IDS, Counting


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 99]
)
def test_examples_of_an_unreadable_file_are_computed_again(damage, tmp_path, caplog):
    module = Counting()
    expected = Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS).logits
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        teacher = Teacher(module, cache=tmp_path)
    assert file.name in caplog.text
    assert torch.equal(teacher.logits([0, 1, 2], None, IDS).logits, expected)
    assert module.calls == 2
    assert torch.equal(teacher.logits([0, 1, 2], None, IDS).logits, expected)
    assert module.calls == 2


def test_examples_of_a_deleted_file_are_computed_again(tmp_path, caplog):
    module = Counting()
    teacher = Teacher(module, cache=tmp_path)
    expected = teacher.logits([0, 1, 2], None, IDS).logits
    next(tmp_path.iterdir()).unlink()
    assert torch.equal(teacher.logits([0, 1, 2], None, IDS).logits, expected)
    assert module.calls == 2
    assert "computed again" in caplog.text


DAMAGED_LOGITS = {
    "nan": {"0/0": torch.full((3,), torch.nan)},
    "integers": {"0/0": torch.ones(3, dtype=torch.int64)},
    "another dtype": {"0/0": torch.ones(3, dtype=torch.float64)},
    "another size": {"0/0": torch.ones(4)},
    "three dimensions": {"0/0": torch.ones(1, 1, 3)},
    "an empty tensor": {"0/0": torch.ones(0)},
    "a span": {"0/0": torch.ones(3), "0/1": torch.ones(3)},
    "half a span": {"0/1": torch.ones(3)},
    "three tensors": {"0/0": torch.ones(3), "0/1": torch.ones(3), "0/2": torch.ones(3)},
    "an unequal span": {"0/0": torch.ones(3), "0/1": torch.ones(2)},
    "no number": {"0": torch.ones(3)},
}


@pytest.mark.parametrize("damage", DAMAGED_LOGITS)
def test_examples_with_damaged_logits_are_computed_again(damage, tmp_path, caplog):
    module = Counting()
    expected = Teacher(module, cache=tmp_path).logits([0, 1, 2], None, IDS).logits
    (file,) = tmp_path.iterdir()
    with safe_open(file, "pt") as content:
        tensors = {f"{n}/0": content.get_tensor(f"{n}/0") for n in (1, 2)}
        metadata = content.metadata()
    save_file(tensors | DAMAGED_LOGITS[damage], file, metadata)
    teacher = Teacher(module, cache=tmp_path)
    assert torch.equal(teacher.logits([0, 1, 2], None, IDS).logits, expected)
    assert module.calls == 2
    if damage != "no number":  # example 0 is missing then, and nothing is damaged
        assert "computed again" in caplog.text


@settings(max_examples=100)
@given(position=st.floats(0, 1), mask=st.integers(1, 255))
def test_changed_bytes_in_the_cache_give_logits_or_an_error(tmp_path_factory, position, mask):
    folder = tmp_path_factory.mktemp("cache")
    Teacher(Counting(), cache=folder).logits([0, 1, 2], None, IDS)
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[int(position * (len(content) - 1))] ^= mask
    file.write_bytes(content)
    try:
        logits = Teacher(Counting(), cache=folder).logits([0, 1, 2], None, IDS).logits
    except ValueError as error:
        assert "holds logits of other weights" in str(error)  # noqa: PT017
    else:
        assert logits.shape == (3, 3)
        assert not logits.isnan().any()


def test_a_pipe_in_the_cache_is_skipped(tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert Teacher(Counting(), cache=tmp_path).logits([0, 1, 2], None, IDS).logits.shape == (3, 3)
    assert "not a regular file" in caplog.text


def test_cache_files_have_default_permissions_and_are_synced(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def recorded(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    Teacher(Counting(), cache=tmp_path / "cache").logits([0, 1, 2], None, IDS)
    (tmp_path / "plain").write_text("")
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
    partial, folder = synced
    assert re.fullmatch(rf"\.{file.name}\.[0-9a-f]{{32}}\.ziplm-partial", partial)
    assert folder == "cache"


@pytest.mark.parametrize("step", ["pathlib.Path.replace", "os.fsync"])
def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch, step):
    teacher = Teacher(Counting(), cache=tmp_path)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(step, full)
    with pytest.raises(OSError, match="no space"):
        teacher.logits([0, 1, 2], None, IDS)
    assert list(tmp_path.iterdir()) == []

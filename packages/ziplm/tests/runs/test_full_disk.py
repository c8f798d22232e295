"""A disk that is full or cannot be written gives exit code 1, and nothing that was there before is lost.

A few writes are tried here in the default run; with ``-m faults`` (``nox -s faults``) all are.
"""

import errno
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import onnx
import pytest
import safetensors.torch
import torch
import ziplm
from ziplm.files import PARTIAL
from ziplm_faults import (
    KINDS,
    Command,
    assert_same_run,
    fault_options,
    give_up_permissions,
    limit_files,
    needs_permissions,
    quiet_line,
    write_fault_files,
)
from ziplm_killed import final_name, path_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fault_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def wholes(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make runs without faults, by kind."""
    folder = tmp_path_factory.mktemp("wholes")

    def make(kind: str) -> Path:
        if not (folder / kind).exists():
            ziplm.compress(**fault_options(files, kind, folder / kind))
        return folder / kind

    return make


# Full disks

Write = tuple[str, str]  # the stage in which a file is written, and its name


class FullDisk:
    """Makes writes of a run fail: each that is wanted once, and with it all later ones of the same attempt.

    It is the reporter of the run as well, by which it knows the stages.

    Args:
        wanted: says which writes are to fail.
    """

    def __init__(self, wanted: Callable[[Write], bool]) -> None:
        self._wanted = wanted
        self.failed: list[Write] = []
        self.start()

    def start(self) -> None:
        """Make space for the next attempt."""
        self._stage, self._full = "", False

    def write(self, name: str) -> None:
        """Fail if the disk is full, or becomes full with this write."""
        write = (self._stage, name)
        if not self._full and write not in self.failed and self._wanted(write):
            self.failed.append(write)
            self._full = True
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def stage(self, description: str) -> Iterator[Callable[[float, float], None]]:
        """Note the stage."""
        self._stage = description
        yield lambda done, total: None

    def note(self, text: str) -> None:
        """Ignore the text."""


# Every file of ours is synced before it gets its name, and a full disk may show only then.
WRITERS = [
    (os, "write", 0),
    (os, "fsync", 0),
    (safetensors.torch, "serialize_file", 1),
    (torch, "save", 1),
    (torch.onnx.ONNXProgram, "save", 1),
    (onnx, "save", 1),
    (onnx, "save_model", 1),
]


@contextmanager
def written_to(disk: FullDisk, run: Path) -> Iterator[None]:
    """Let the disk hear of every write below the run folder."""

    def watched(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = Path(path_of(args[place]))
            if path.is_relative_to(run):
                disk.write(final_name(str(path), run))
            return function(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, place in WRITERS:
            patch.setattr(owner, name, watched(getattr(owner, name), place))
        yield


def fill_again_and_again(options: dict[str, Any], disk: FullDisk) -> None:
    """Run until no write fails; each attempt resumes what the one before has left."""
    run = Path(options["output"])
    while True:
        tried = len(disk.failed)
        disk.start()
        with suppress(OSError), written_to(disk, run):
            ziplm.compress(**options, progress=disk)
            return
        assert len(disk.failed) == tried + 1  # it was this write, and not another error
        assert not list(run.rglob(f"*{PARTIAL}")), disk.failed[-1]


def test_a_disk_that_is_full_at_some_writes_loses_nothing(
    files: Path, wholes: Callable[[str], Path], tmp_path: Path
) -> None:
    disk = FullDisk(lambda write: zlib.crc32(repr(write).encode()) % 12 == 0)
    fill_again_and_again(fault_options(files, "oneshot", tmp_path / "run"), disk)
    assert len(disk.failed) > 3
    assert_same_run(tmp_path / "run", wholes("oneshot"))


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_at_any_write_loses_nothing(
    files: Path, wholes: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    disk = FullDisk(lambda write: True)
    fill_again_and_again(fault_options(files, kind, tmp_path / "run"), disk)
    print(f"{kind}: {len(disk.failed)} writes failed", disk.failed)
    assert len(disk.failed) > 40
    assert_same_run(tmp_path / "run", wholes(kind))


# Limits of the size of files, which libraries meet in the same calls as a full disk


def try_limits(options: dict[str, Any], limits: list[int]) -> None:
    for limit in limits:
        code, errors = Command(quiet_line(options), limit_files, limit).wait()
        assert code == 1, (limit, errors)
        assert len(errors.splitlines()) == 1, errors
        assert len(errors) <= 500
    code, errors = Command(quiet_line(options)).wait()
    assert code == 0, errors


LIMITED = {
    **{kind: kind for kind in KINDS},
    "openvino": "engine",
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", LIMITED)
def test_a_write_that_fails_in_a_library_at_any_size_is_a_failed_write(
    files: Path, wholes: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    options = fault_options(files, LIMITED[kind], tmp_path / "run")
    if kind == "openvino":
        options["engine"] = "openvino"
    largest = max(file.stat().st_size for file in wholes(LIMITED[kind]).rglob("*") if file.is_file())
    limits = [0] + [limit for step in range(20) if (limit := int(30 * 1.8**step)) < 0.6 * largest]
    try_limits(options, limits)
    if kind != "openvino":
        assert_same_run(tmp_path / "run", wholes(kind))


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_an_export_that_fails_to_be_written_is_a_failed_write(files: Path, tmp_path: Path) -> None:
    try_limits(fault_options(files, "engine", tmp_path / "run"), [20_000, 45_000])


# Folders that cannot be written


@pytest.fixture(scope="module")
def place(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files, and a run of the first of two targets."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(files, place / "files")
    ziplm.compress(**{**fault_options(place / "files", "oneshot", place / "run"), "speedup": [1.5]})
    return place


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Let nobody write into a folder while the block runs."""
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(mode)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files, except for those that say what was asked for last."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in found if path.name not in ("run.log", "config.toml")}


@needs_permissions
@pytest.mark.parametrize("folder", [".", "run", "run/state", "run/state/targets"])
def test_a_folder_that_cannot_be_written_is_a_failed_write_and_keeps_everything(
    place: Path, folder: str
) -> None:
    """In the folder above, a new run cannot begin; in the others, one cannot be resumed."""
    output = place / ("new" if folder == "." else "run")
    line, before = quiet_line(fault_options(place / "files", "oneshot", output)), contents(place)
    with closed(place / folder):
        code, errors = Command(line, give_up_permissions).wait()
    assert code == 1, errors
    assert "Permission denied" in errors
    assert len(errors.splitlines()) == 1
    assert contents(place) == before


@needs_permissions
def test_a_checkpoint_that_cannot_be_written_is_not_exported_into(place: Path) -> None:
    before = contents(place)
    with closed(place / "files/bert"):
        line = ["export", str(place / "files/bert"), "--format", "onnx"]
        code, errors = Command(line, give_up_permissions).wait()
    assert code == 1, errors
    assert "Permission denied" in errors.splitlines()[-1]
    assert contents(place) == before


@needs_permissions
def test_a_folder_that_can_be_written_again_is_resumed(place: Path) -> None:
    """Control of the tests above, after them."""
    line = quiet_line(fault_options(place / "files", "oneshot", place / "run"))
    code, errors = Command(line, give_up_permissions).wait()
    assert code == 0, errors
    assert (place / "run/3x/metrics.json").is_file()

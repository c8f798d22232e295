"""Traces can be saved and loaded; other files are refused."""

import errno
import json
import os
import re
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_problems import random_problem
from obs_structured import Trace, prune

FORMAT = "obs-structured trace 1"


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_a_loaded_trace_equals_the_saved_one(tmp_path: Path, update: bool, centred: bool) -> None:
    problem = random_problem(1, 6, 10, 2, centred=centred, flaw="dead")
    trace = prune(problem.weight.float(), problem.hessian, 2, mean=problem.mean, update=update)
    trace.save(tmp_path / "layer.safetensors")
    loaded = Trace.load(tmp_path / "layer.safetensors")
    assert torch.equal(loaded.order, trace.order)
    assert torch.equal(loaded.errors, trace.errors)
    assert (loaded.group_size, loaded.damping) == (2, trace.damping)
    metric = torch.linspace(1, 2, 6)
    assert torch.equal(loaded.errors_under(metric), trace.errors_under(metric))
    for k in range(11):
        assert torch.equal(loaded.weight(k), trace.weight(k))
        assert torch.equal(loaded.bias_shift(k), trace.bias_shift(k))
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_the_file_of_a_large_trace_is_below_80_megabytes(tmp_path: Path) -> None:
    rows, d = 768, 3072
    trace = Trace(
        torch.arange(d),
        torch.zeros(rows, d, dtype=torch.float64),
        torch.zeros(d, d, dtype=torch.float64),
        group_size=1,
        updated=True,
        damping=0.01,
        absolute_damping=0.01,
        free_columns=0,
        mean=torch.zeros(d, dtype=torch.float64),
        dtype=torch.float32,
        scale=1.0,
        errors=torch.zeros(d + 1, dtype=torch.float64),
    )
    trace.save(tmp_path / "layer.safetensors")
    assert (tmp_path / "layer.safetensors").stat().st_size < 80e6


def save_with_full_disk(trace: Trace, path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        trace.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def save_with_failing(name: str) -> Callable[[Trace, Path], None]:
    def fail(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    def save(trace: Trace, path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*((Path, "replace") if name == "replace" else (os, name)), fail)
            trace.save(path)

    return save


@pytest.mark.parametrize(
    "save",
    [save_with_full_disk, save_with_failing("fsync"), save_with_failing("replace")],
    ids=["write", "fsync", "replace"],
)
def test_a_failed_save_keeps_the_old_file(tmp_path: Path, save: Callable[[Trace, Path], None]) -> None:
    problem = random_problem(2)
    trace = prune(problem.weight, problem.hessian)
    trace.save(tmp_path / "layer.safetensors")
    before = (tmp_path / "layer.safetensors").read_bytes()
    with pytest.raises(OSError, match="File too large"):
        save(prune(2 * problem.weight, problem.hessian), tmp_path / "layer.safetensors")
    assert (tmp_path / "layer.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_and_its_folder_are_synced_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recorded_replace(path: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    problem = random_problem(2)
    prune(problem.weight, problem.hessian).save(tmp_path / "layer.safetensors")
    partial, *others = calls
    assert re.fullmatch(r"\.layer\.safetensors\.[0-9a-f]{32}\.ziplm-partial", partial)
    assert others == ["rename", tmp_path.name]


def test_files_that_are_not_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("{}")
    with pytest.raises(ValueError, match="other is not a trace"):
        Trace.load(path)
    safetensors.torch.save_file({"order": torch.arange(3)}, path)
    with pytest.raises(ValueError, match="is not a trace: its format is None"):
        Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "missing")


def content_of(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and scalars of a trace file."""
    with safetensors.safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["scalars"])


def write_content(path: Path, tensors: dict[str, torch.Tensor], scalars: object) -> None:
    text = scalars if isinstance(scalars, str) else json.dumps(scalars)
    safetensors.torch.save_file(tensors, path, {"format": FORMAT, "scalars": text})


# Every entry makes a damaged copy of a tensor, or None to leave it out.
TENSOR_DAMAGE: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor | None]]] = {
    "short triangle": ("triangle", lambda tensor: tensor[:5].clone()),
    "long triangle": ("triangle", lambda tensor: tensor.repeat(2)),
    "nan triangle": ("triangle", lambda tensor: tensor / 0),
    "half triangle": ("triangle", lambda tensor: tensor.half()),
    "short order": ("order", lambda tensor: tensor[1:].clone()),
    "repeated order": ("order", torch.zeros_like),
    "negative order": ("order", lambda tensor: tensor - 1),
    "float order": ("order", lambda tensor: tensor.double()),
    "short order dtype": ("order", lambda tensor: tensor.to(torch.int8)),
    "square order": ("order", lambda tensor: tensor.view(2, -1)),
    "no components": ("components", lambda _: None),
    "flat components": ("components", lambda tensor: tensor.flatten()),
    "empty components": ("components", lambda tensor: tensor[:0]),
    "no columns": ("components", lambda tensor: tensor[:, :0]),
    "infinite components": ("components", lambda tensor: tensor * torch.inf),
    "complex components": ("components", lambda tensor: tensor.to(torch.complex64)),
    "scalar mean": ("mean", lambda _: torch.tensor(1.0).double()),
    "short mean": ("mean", lambda _: torch.zeros(3).double()),
    "short errors": ("errors", lambda tensor: tensor[1:].clone()),
    "negative errors": ("errors", lambda tensor: -tensor),
    "nan errors": ("errors", lambda tensor: tensor * torch.nan),
    "unknown tensor": ("surprise", lambda _: torch.zeros(1)),
}
SCALAR_DAMAGE: dict[str, object] = {
    "dtype": ["save", 7, None, "int64", ["float32"], "\ud800", "x" * 10**5],
    "group_size": [5, 0, -1, 1.0, True, "1", None, 2**62, 10**4000, [1]],
    "updated": [1, "yes", None],
    "damping": [-0.1, float("nan"), float("inf"), "0", None, 10**400, {}],
    "absolute_damping": [-0.1, float("nan"), float("inf"), "0"],
    "free_columns": [-(2**63), -1, 10**18, 13, 1.0, "0", None],
    "scale": [0, -1.0, float("nan"), float("inf"), None],
    "surprise": [1],
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    problem = random_problem(3)
    prune(problem.weight, problem.hessian).save(tmp_path / "layer.safetensors")
    return tmp_path / "layer.safetensors"


def test_a_file_that_is_cut_off_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is not a trace"):
        Trace.load(saved)


def assert_damaged(path: Path) -> None:
    with pytest.raises(ValueError, match="is a damaged trace: ") as caught:
        Trace.load(path)
    message = str(caught.value).replace(str(path), "")
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("damage", TENSOR_DAMAGE)
def test_damaged_tensors_are_refused(saved: Path, damage: str) -> None:
    tensors, scalars = content_of(saved)
    name, change = TENSOR_DAMAGE[damage]
    damaged = change(tensors.pop(name, torch.empty(0)))
    write_content(saved, tensors if damaged is None else {**tensors, name: damaged}, scalars)
    assert_damaged(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{number}")
        for name, values in SCALAR_DAMAGE.items()
        for number, value in enumerate(values)
    ],
)
def test_damaged_scalars_are_refused(saved: Path, name: str, value: object) -> None:
    tensors, scalars = content_of(saved)
    write_content(saved, tensors, {**scalars, name: value})
    assert_damaged(saved)


@pytest.mark.parametrize("text", ["", "[", "[" * 10**5, "1", "null", '{"group_size": 1}', "9" * 10**4])
def test_scalars_that_are_not_the_expected_object_are_refused(saved: Path, text: str) -> None:
    write_content(saved, content_of(saved)[0], text)
    assert_damaged(saved)


def test_undamaged_content_is_accepted(saved: Path) -> None:
    write_content(saved, *content_of(saved))
    assert Trace.load(saved).groups == 12


def test_a_huge_shape_in_the_header_is_refused_without_allocating(saved: Path) -> None:
    tensors, scalars = content_of(saved)
    tensors["components"] = torch.empty(1, 0, dtype=torch.float64)
    write_content(saved, tensors, {**scalars, "group_size": 10**9})
    content = saved.read_bytes().replace(b'"shape":[1,0]', b'"shape":[0,%d]' % 10**15)
    size = len(content) - len(saved.read_bytes()) + int.from_bytes(content[:8], "little")
    saved.write_bytes(size.to_bytes(8, "little") + content[8:])
    assert_damaged(saved)


@settings(max_examples=150)
@given(position=st.floats(0, 1), mask=st.integers(1, 255), length=st.integers(1, 3))
def test_changed_bytes_give_a_trace_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, position: float, mask: int, length: int
) -> None:
    problem = random_problem(3, rows=2, groups=3)
    path = tmp_path_factory.mktemp("fuzz") / "layer"
    prune(problem.weight, problem.hessian).save(path)
    content = bytearray(path.read_bytes())
    start = int(position * (len(content) - length))
    for index in range(start, start + length):
        content[index] ^= mask
    path.write_bytes(content)
    try:
        trace = Trace.load(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert trace.weight(1).shape == (2, 2 * trace.group_size)


def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        Trace.load(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a regular file"):
        Trace.load("/dev/zero")


def test_an_unreadable_file_is_not_reported_as_missing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root could open a file of mode 0
    with pytest.raises(PermissionError):
        Trace.load(saved)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder, not a trace"):
        Trace.load(tmp_path)


def test_a_trace_file_has_the_default_permissions(tmp_path: Path) -> None:
    problem = random_problem(4)
    prune(problem.weight, problem.hessian).save(tmp_path / "layer.safetensors")
    (tmp_path / "plain").write_text("")
    modes = {stat.filemode(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1

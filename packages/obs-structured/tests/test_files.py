"""Traces can be saved and loaded; other files are refused."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from obs_problems import random_problem
from obs_structured import Trace, prune


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


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(2)
    trace = prune(problem.weight, problem.hessian)
    trace.save(tmp_path / "layer.safetensors")
    before = (tmp_path / "layer.safetensors").read_bytes()

    write = Path.write_bytes

    def full_disk(path: Path, content: bytes) -> int:
        write(path, content[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space left"):
        trace.save(tmp_path / "layer.safetensors")
    assert (tmp_path / "layer.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


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


def test_damaged_traces_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    problem = random_problem(3)
    prune(problem.weight, problem.hessian).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="is not a trace"):
        Trace.load(path)
    path.write_bytes(content)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    scalars = json.loads(metadata["scalars"])
    order = tensors["order"]
    for damaged_tensors, damaged_scalars in (
        ({**tensors, "triangle": tensors["triangle"][:5]}, scalars),
        ({**tensors, "triangle": tensors["triangle"].repeat(2)}, scalars),
        ({**tensors, "order": order[1:].clone()}, scalars),
        ({**tensors, "order": torch.zeros_like(order)}, scalars),
        ({key: value for key, value in tensors.items() if key != "components"}, scalars),
        (tensors, {**scalars, "dtype": "save"}),
        (tensors, {**scalars, "group_size": 5}),
        (tensors, {"group_size": 1}),
    ):
        safetensors.torch.save_file(
            damaged_tensors, path, {**metadata, "scalars": json.dumps(damaged_scalars)}
        )
        with pytest.raises(ValueError, match="is a damaged trace"):
            Trace.load(path)
    with pytest.raises(ValueError, match="is a folder, not a trace"):
        Trace.load(tmp_path)


def test_a_trace_file_has_the_default_permissions(tmp_path: Path) -> None:
    problem = random_problem(4)
    prune(problem.weight, problem.hessian).save(tmp_path / "layer.safetensors")
    (tmp_path / "plain").write_text("")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1

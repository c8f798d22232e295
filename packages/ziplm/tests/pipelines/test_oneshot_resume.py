"""A finished or interrupted one-shot run uses what it has stored."""

import shutil
from pathlib import Path

import pytest
from latency_profiler import ProfilerError
from ziplm import Family, ZipLMError, compress
from ziplm_compressed import Recorder, options_for, without_times


def test_a_second_call_does_nothing_and_returns_the_same_family(
    files: Path, architecture: str, made: Family
) -> None:
    folder, recorder = made[0].folder.parent, Recorder()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix == ".safetensors"}
    again = compress(**options_for(files, architecture, folder, speedup=[1.5, 3]), progress=recorder)
    assert again == made
    assert compress(**options_for(files, architecture, folder, speedup=[3]), progress=recorder) == made[1:]
    assert recorder.stages == []
    assert before == {path: path.stat().st_mtime_ns for path in before}


def copied(made: Family, folder: Path, *without: str) -> Path:
    """Return a copy of a run that lacks some files."""
    run = folder / "run"
    shutil.copytree(made[0].folder.parent, run)
    for name in without:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return run


def test_another_target_uses_the_stored_table_and_traces(
    files: Path, architecture: str, made: Family, tmp_path: Path
) -> None:
    run, recorder = copied(made, tmp_path), Recorder()
    (member,) = compress(**options_for(files, architecture, run, speedup=[2.5]), progress=recorder)
    assert recorder.stages == ["reading data", "search", "refit", "evaluate 2.5x: validation"]
    assert member.metrics["predicted"]["speedup"] >= 2.5
    assert compress(**options_for(files, architecture, run, speedup=[1.5]))[0].metrics == made[0].metrics


DAMAGED = [
    "state/fisher.safetensors",
    "state/traces/layer1.ffn.safetensors",
    "state/priors/layer1.ffn.safetensors",
    "state/dense-metrics.json",
    "state/seconds.json",
    "state/targets/3x/search.json",
    "state/targets/3x/found.json",
    "state/targets/3x/fitted.json",
    "latency.json",
]


@pytest.mark.parametrize("architecture", ["bert"], indirect=True)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_can_be_deleted(
    files: Path, architecture: str, made: Family, tmp_path: Path, name: str
) -> None:
    """If the file is deleted, as the message says, the run ends with the same member."""
    lost = ["3x", "state/targets/3x/found.json"] if "search" in name else ["3x"]
    run = copied(made, tmp_path, *lost)
    options = options_for(files, architecture, run, speedup=[3])
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: len(data) // 2])
    with pytest.raises((ZipLMError, ProfilerError)) as caught:
        compress(**options)
    assert Path(name).name in str(caught.value)
    assert "\n" not in str(caught.value)
    (run / name).unlink()
    (again,) = compress(**options)
    assert without_times(again.metrics) == without_times(made[1].metrics)


def test_with_little_memory_more_passes_give_the_same_member(
    files: Path, architecture: str, made: Family, tmp_path: Path
) -> None:
    options = options_for(files, architecture, tmp_path / "run", speedup=[3], memory_gb=1e-9)
    recorder = Recorder()
    (member,) = compress(**options, progress=recorder)
    assert recorder.stages.count("calibrate: inputs") == 6
    assert without_times(member.metrics) == without_times(made[1].metrics)

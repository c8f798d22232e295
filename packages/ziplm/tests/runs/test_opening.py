"""A run folder belongs to one process and one set of options, and killed processes leave nothing in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from ziplm import BadRun, Options
from ziplm.options.toml import load_options
from ziplm.runs.folder import Run
from ziplm.runs.opening import open_run


def options_in(folder: Path, **options: Any) -> Options:
    values = {"model": "m", "task": "sst2", "output": str(folder), "speedup": (2.0,), **options}
    return Options(**values)  # type: ignore[arg-type]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_keeps_its_options_and_takes_more_targets(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_run(options_in(folder, speedup=(2.0, 50.0))) as run:
        finish(run, "2x")
    with open_run(options_in(folder, speedup=(4.0,), latency_ms=(3.0,), memory_gb=0.5)):
        pass
    kept = load_options(folder / "config.toml")
    assert kept.speedup == (2.0, 4.0)  # 50 was never finished, and is no longer asked for
    assert kept.latency_ms == (3.0,)
    with (
        pytest.raises(
            BadRun, match="made with other options: search_samples is 4, was 256, seed is 1, was 0; repeat"
        ),
        open_run(options_in(folder, seed=1, search_samples=4)),
    ):
        pass
    assert load_options(folder / "config.toml") == kept


def finish(run: Run, target: str) -> None:
    """Make the files by which a run recognises a finished target."""
    run.latency_file.touch()
    run.member_folder(target).mkdir()
    (run.member_folder(target) / "metrics.json").touch()


def test_options_may_change_until_there_are_results(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OSError, match="typo"), open_run(options_in(folder, train_file="typo.tsv")):
        raise OSError("no typo.tsv")
    with open_run(options_in(folder, train_file="train.tsv")) as run:
        run.latency_file.touch()
    assert load_options(folder / "config.toml").train_file == str(Path("train.tsv").absolute())
    with pytest.raises(BadRun, match="other options"), open_run(options_in(folder, train_file="other.tsv")):
        pass


def test_targets_of_commands_with_other_limits_are_not_combined(tmp_path: Path) -> None:
    """A command for 2x and another for a sparsity do not ask for 2x with that sparsity."""
    folder = tmp_path / "run"
    for options in ({"speedup": (2.0,)}, {"speedup": (), "sparsity": (0.5, 0.7)}):
        with open_run(options_in(folder, **options)):
            pass
        names = [target.name for target in load_options(folder / "config.toml").targets()]
        assert names == (["2x"] if options["speedup"] else ["sparsity0.5", "sparsity0.7"])
    for options in ({"speedup": (2.0,), "params": 9.0}, {"speedup": (3.0,), "params": 9.0}):
        with open_run(options_in(folder, **options)) as run:
            finish(run, f"{options['speedup'][0]:g}x-params9")
    assert load_options(folder / "config.toml").speedup == (2.0, 3.0)


def test_a_file_and_a_folder_with_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadRun, match="is not a folder"), open_run(options_in(tmp_path / "file")):
        pass
    with pytest.raises(BadRun, match="holds something else"), open_run(options_in(tmp_path)):
        pass
    assert names_in(tmp_path) == ["file"]
    with pytest.raises(OSError, match="file"), open_run(options_in(tmp_path / "file" / "run")):
        pass


def test_a_run_killed_before_it_had_options_resumes(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="killed"), open_run(options_in(tmp_path)) as run:
        raise OSError("killed")
    run.options_file.unlink()
    run.log_file.unlink()
    (tmp_path / f".config.toml.{'0' * 32}.ziplm-partial").write_text("half")
    with open_run(options_in(tmp_path)):
        assert names_in(tmp_path) == ["config.toml", "run.log", "ziplm-run.json"]


def test_a_run_killed_before_it_had_written_its_marker_resumes(tmp_path: Path) -> None:
    (tmp_path / "ziplm-run.json").touch()
    with open_run(options_in(tmp_path)):
        assert json.loads((tmp_path / "ziplm-run.json").read_text())["format"] == 2


def test_partial_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with open_run(options_in(tmp_path)) as run:
        pass
    kept = [tmp_path / ".gitignore", tmp_path / "mine" / "config.json", run.priors_file("layer0.ffn")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    partial = f"{'a' * 32}.ziplm-partial"
    (tmp_path / f".2x.{partial}").mkdir()
    (tmp_path / f".2x.{partial}" / "model.safetensors").touch()
    leftovers = [run.state / "targets" / "2x" / f".search.json.{partial}"]
    leftovers += [tmp_path / f".latency.json.{partial}"]
    leftovers += [run.state / "traces" / f".layer0.ffn.safetensors.{partial}"]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with open_run(options_in(tmp_path)):
        assert not any(path.exists() for path in [*leftovers, tmp_path / f".2x.{partial}"])
        assert all(path.exists() for path in kept)


def test_a_damaged_file_of_options_is_named(tmp_path: Path) -> None:
    with open_run(options_in(tmp_path)) as run:
        run.latency_file.touch()
    run.options_file.write_text("model = ")
    with pytest.raises(BadRun, match=r"config.toml is damaged.*not TOML"), open_run(options_in(tmp_path)):
        pass


@pytest.mark.parametrize("state", ["targets/2x", "targets/2x/attempt1", "steps/2x-from-dense/targets/2x"])
@pytest.mark.parametrize("name", ["exported", "training/checkpoint-4"])
def test_what_a_killed_process_has_not_deleted_of_a_finished_target_is_removed(
    tmp_path: Path, state: str, name: str
) -> None:
    """Whatever target the next command asks for; results, and folders of other targets, are kept."""
    with open_run(options_in(tmp_path)) as run:
        finish(run, "2x")
    left = run.state / state / name / "file"
    kept = [run.state / state / "found.json", run.state / state.replace("2x", "4x") / name / "file"]
    for path in (left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with open_run(options_in(tmp_path, speedup=(4.0,))):
        assert not left.parent.exists()
        assert all(path.exists() for path in kept)

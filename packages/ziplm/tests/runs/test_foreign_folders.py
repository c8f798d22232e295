"""Nothing that is not ours is overwritten, deleted or followed, whatever `--output` points to."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import ziplm
from click.testing import CliRunner, Result
from ziplm.cli import main
from ziplm_compressed import command_line, options_for, write_files

DOT_FILES = (".env.template", ".notes.20240101", ".a.abcdefgh", f".b.{'0' * 32}.json")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with one finished target."""
    run = tmp_path_factory.mktemp("made") / "run"
    ziplm.compress(**options_for(files, "bert", run, speedup=[2]))
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the run."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def compress(files: Path, output: Path, *more: object) -> Result:
    """Call `ziplm compress`."""
    line = command_line(options_for(files, "bert", output, speedup=1.5))
    return CliRunner().invoke(main, [*line, *map(str, more)])


def everything_in(folder: Path) -> dict[str, object]:
    """Return every file with its bytes and time, every folder and every link, without following links."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = path.readlink()
        else:
            found[str(path)] = (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else "folder"
    return found


def assert_refused(result: Result) -> None:
    assert result.exit_code == 5, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert len(line) <= 500


def write_dot_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOT_FILES:
        (folder / name).write_text("mine")


def a_config(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.toml").write_text("[package]\nname = 'mine'\n")
    write_dot_files(folder)


def a_config_of_ours(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.toml").write_text("model = 'm'\ntask = 'sst2'\noutput = 'o'\nspeedup = [2.0]\n")
    write_dot_files(folder)


def a_state(folder: Path) -> None:
    write_dot_files(folder / "state")
    (folder / "state" / "lock").write_text("mine")


def a_partial_file(folder: Path) -> None:
    folder.mkdir()
    (folder / f".x.{'0' * 32}.ziplm-partial").write_text("mine")


def a_marker_of_somebody_else(folder: Path) -> None:
    folder.mkdir()
    (folder / "ziplm-run.json").write_text('{"format": 2}')
    write_dot_files(folder)


def a_deep_marker(folder: Path) -> None:
    folder.mkdir()
    (folder / "ziplm-run.json").write_text("[" * 9000)


def an_empty_marker_beside_a_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "ziplm-run.json").touch()
    (folder / "thesis.txt").write_text("mine")


def a_link_as_marker(folder: Path) -> None:
    folder.mkdir()
    (folder.parent / "marker.json").write_text("{}")
    (folder / "ziplm-run.json").symlink_to(folder.parent / "marker.json")


def a_file(folder: Path) -> None:
    folder.write_text("mine")


def a_broken_link(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


FOREIGN = [
    a_config,
    a_config_of_ours,
    a_state,
    a_partial_file,
    a_marker_of_somebody_else,
    a_deep_marker,
    an_empty_marker_beside_a_file,
    a_link_as_marker,
    a_file,
    a_broken_link,
]


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["compress", "dry run"])
@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_what_is_not_a_run_folder_is_refused_and_not_touched(
    files: Path, tmp_path: Path, make: Callable[[Path], None], more: tuple[str, ...]
) -> None:
    make(tmp_path / "here")
    before = everything_in(tmp_path)
    assert_refused(compress(files, tmp_path / "here", *more))
    assert everything_in(tmp_path) == before


def test_dot_files_in_a_run_folder_are_not_deleted(files: Path, run: Path) -> None:
    for folder in (run, run / "state", run / "state" / "traces"):
        write_dot_files(folder)
    assert compress(files, run).exit_code == 0
    for folder in (run, run / "state", run / "state" / "traces"):
        assert all((folder / name).read_text() == "mine" for name in DOT_FILES)


def state_is_a_link(run: Path) -> None:
    (run / "state").rename(run.parent / "elsewhere")
    (run / "state").symlink_to(run.parent / "elsewhere")


def traces_are_a_link(run: Path) -> None:
    (run / "state" / "traces").rename(run.parent / "elsewhere")
    (run / "state" / "traces").symlink_to(run.parent / "elsewhere")


def options_are_a_link(run: Path) -> None:
    (run / "config.toml").rename(run.parent / "config.toml")
    (run / "config.toml").symlink_to(run.parent / "config.toml")


def the_log_is_a_link(run: Path) -> None:
    (run / "run.log").unlink()
    (run.parent / "bashrc").write_text("mine")
    (run / "run.log").symlink_to(run.parent / "bashrc")


def the_target_is_a_folder(run: Path) -> None:
    (run / "1.5x").mkdir()
    (run / "1.5x" / "thesis.txt").write_text("mine")


def the_target_is_an_empty_folder(run: Path) -> None:
    (run / "1.5x").mkdir()


def the_target_is_a_file(run: Path) -> None:
    (run / "1.5x").write_text("mine")


def the_target_is_a_link(run: Path) -> None:
    (run.parent / "mine").mkdir()
    (run / "1.5x").symlink_to(run.parent / "mine")


def the_target_is_a_broken_link(run: Path) -> None:
    (run / "1.5x").symlink_to(run.parent / "nowhere")


def the_target_has_other_metrics(run: Path) -> None:
    (run / "1.5x").mkdir()
    (run / "1.5x" / "metrics.json").write_text(json.dumps({"accuracy": 0.9}))


INSIDE = [
    state_is_a_link,
    traces_are_a_link,
    options_are_a_link,
    the_log_is_a_link,
    the_target_is_a_folder,
    the_target_is_a_file,
    the_target_is_a_link,
    the_target_is_a_broken_link,
    the_target_has_other_metrics,
]


@pytest.mark.parametrize("make", INSIDE, ids=lambda make: make.__name__)
def test_links_and_foreign_targets_in_a_run_folder_are_refused(
    files: Path, run: Path, make: Callable[[Path], None]
) -> None:
    make(run)
    before = everything_in(run.parent)
    result = compress(files, run)
    assert_refused(result)
    after = everything_in(run.parent)
    log = str(run / "run.log")
    written = {log, str(run / "config.toml")} if make is the_target_has_other_metrics else set()
    assert {path: what for path, what in after.items() if path not in written} == {
        path: what for path, what in before.items() if path not in written
    }


def test_links_of_other_names_are_left_alone(files: Path, run: Path) -> None:
    (run / "best").symlink_to("2x")
    assert compress(files, run).exit_code == 0
    assert (run / "best").readlink() == Path("2x")


def test_a_checkpoint_replaces_only_a_checkpoint(tmp_path: Path) -> None:
    from ziplm_models import tiny_model

    model = tiny_model("BertModel")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    with pytest.raises(ziplm.BadCheckpoint, match="is not the folder of a checkpoint; choose a new or empty"):
        ziplm.save(model, tmp_path / "home")
    assert (tmp_path / "home" / "thesis.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    ziplm.save(model, tmp_path / "empty")
    ziplm.save(model, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "home"]

"""A run is not continued with another model or other data at the same path: old results would be mixed in."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ziplm
from safetensors.torch import load_file, save_file
from ziplm import BadRun, Options
from ziplm.pipelines.inputs import keep_loaded
from ziplm.pipelines.values import Samples
from ziplm.runs.folder import Run
from ziplm.runs.opening import open_run
from ziplm_compressed import options_for, write_files


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make files, and a run with one finished target beside them."""
    folder = tmp_path_factory.mktemp("made")
    files = write_files(folder / "files")
    ziplm.compress(**options_for(files, "bert", folder / "run", speedup=[2]))
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """Return a copy of files and run; the options of the run name the files by their new place."""
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(made), str(folder)))
    return folder


def compress(folder: Path, *speedups: float) -> ziplm.Family:
    return ziplm.compress(**options_for(folder / "files", "bert", folder / "run", speedup=list(speedups)))


def other_weights(files: Path) -> None:
    path = files / "bert" / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.bias"] += 1e-6
    save_file(tensors, path, {"format": "pt"})


def other_config(files: Path) -> None:
    path = files / "bert" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_norm_eps": 1e-5}))


def other_tokenizer(files: Path) -> None:
    path = files / "bert" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 9}))


def another_index(files: Path) -> None:
    (files / "bert" / "model.safetensors.index.json").write_text("{}")


def other_examples(files: Path) -> None:
    path = files / "train.csv"
    path.write_text(path.read_text().replace("a", "b", 1))


def fewer_examples(files: Path) -> None:
    path = files / "valid.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def other_table(files: Path) -> None:
    path = files / "latency.json"
    path.write_text(path.read_text() + " ")


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (other_weights, "model.safetensors of the model"),
    (other_config, "config.json of the model"),
    (other_tokenizer, "tokenizer_config.json of the model"),
    (another_index, "model.safetensors.index.json of the model"),
    (other_examples, "train_file"),
    (fewer_examples, "validation_file"),
    (other_table, "latency_table"),
]


@pytest.mark.parametrize("speedup", [3.0, 2.0], ids=["another target", "same command"])
@pytest.mark.parametrize(("change", "named"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_files_that_changed_are_named(
    copied: Path, change: Callable[[Path], None], named: str, speedup: float
) -> None:
    change(copied / "files")
    with pytest.raises(BadRun, match=f"{named} changed since the run in .* was started; give the same, or"):
        compress(copied, speedup)
    assert not (copied / "run" / "3x").exists()


def test_all_files_that_changed_are_named_at_once(copied: Path) -> None:
    for change, _ in CHANGES:
        change(copied / "files")
    with pytest.raises(BadRun) as raised:
        compress(copied, 3)
    assert all(named in str(raised.value) for _, named in CHANGES)


def test_the_same_files_with_other_times_are_the_same(copied: Path) -> None:
    """Control: the copies are newer than the run, and a file that no one reads is beside the model."""
    for path in (copied / "files").rglob("*"):
        path.touch()
    (copied / "files" / "bert" / "README.md").write_text("notes")
    assert [member.target for member in compress(copied, 2, 3)] == ["2x", "3x"]


def test_files_may_change_until_there_are_results(made: Path, tmp_path: Path) -> None:
    files = Path(shutil.copytree(made / "files", tmp_path / "files"))
    rows = (files / "train.csv").read_text()
    (files / "train.csv").write_text("".join(rows.splitlines(keepends=True)[:3]))
    with pytest.raises(ziplm.UsageError, match="training examples"):
        compress(tmp_path, 2)
    (files / "train.csv").write_text(rows)
    assert [member.target for member in compress(tmp_path, 2)] == ["2x"]


@pytest.mark.parametrize("damage", ["missing", "{", "[]", '{"train_file": 5}', "[" * 10**5])
def test_a_run_without_its_fingerprints_is_not_continued(copied: Path, damage: str) -> None:
    path = copied / "run" / "fingerprints.json"
    path.unlink()
    if damage != "missing":
        path.write_text(damage)
    with pytest.raises(BadRun, match=r"fingerprints.json is (missing|damaged)"):
        compress(copied, 3)


def loaded(run: Run, options: Options, commit: str, sample: int) -> None:
    dense: Any = SimpleNamespace(config=SimpleNamespace(_commit_hash=commit))
    keep_loaded(run, options, dense, Samples([{"input_ids": [sample]}], [], []))


def test_a_model_and_a_dataset_of_the_hub_are_known_by_commit_and_samples(tmp_path: Path) -> None:
    options = Options(model="some/model", task="sst2", output=str(tmp_path), speedup=(2.0,))
    with open_run(options) as run:
        loaded(run, options, "abc", 1)
        run.stored(run.state / "found.json", dict)
        loaded(run, options, "abc", 1)
    with open_run(options) as run:
        with pytest.raises(BadRun, match="model on the hub changed since"):
            loaded(run, options, "def", 1)
        with pytest.raises(BadRun, match="samples of the dataset changed since"):
            loaded(run, options, "abc", 2)
        loaded(run, options, "abc", 1)

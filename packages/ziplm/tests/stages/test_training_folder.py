"""Training resumes from its folder to the same weights, and refuses folders of other trainings."""

import copy
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import ziplm
from ziplm import BadRun, UsageError, ZipLMError, shrink
from ziplm_finetune import DISTILLED, MODELS, OFTEN, OPTIONS, Killed, same, train, weights
from ziplm_gradual import gradual_options
from ziplm_models import make_traces, removed_by, tiny_model


@pytest.mark.parametrize(("name", "distilled"), [(MODELS[0], True), (MODELS[1], False)])
def test_killed_training_resumes_to_the_same_weights(tmp_path: Path, name: str, distilled: bool) -> None:
    dense = tiny_model(name)
    student = shrink(dense, removed_by(dense, "a whole layer"), make_traces(dense))
    teaching = {"teacher": dense, "loss": DISTILLED} if distilled else {}
    ends = []
    for kills in ([], [4, 13, 19]):  # before the first checkpoint, in the third epoch, before the last step
        model = copy.deepcopy(student)
        folder = tmp_path / str(kills)
        for step in kills:
            with pytest.raises(Killed):
                train(model, folder, OFTEN, kill_after=step, **teaching)
            model = copy.deepcopy(student)
        summary = train(model, folder, OFTEN, **teaching)
        ends.append((weights(model), summary.losses))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
    other = copy.deepcopy(student)
    train(other, tmp_path / "other", replace(OFTEN, seed=1), **teaching)
    assert not same(weights(other), ends[0][0])


@pytest.mark.parametrize("damage", ["unfinished", "emptied"])
def test_an_unfinished_checkpoint_is_ignored(tmp_path: Path, damage: str) -> None:
    whole, model = tiny_model(MODELS[0]), tiny_model(MODELS[0])
    train(whole, tmp_path / "whole")
    with pytest.raises(Killed):
        train(model, tmp_path / "killed", OFTEN, kill_after=13)
    last = tmp_path / "killed" / "checkpoint-10"
    (last / "whole").unlink()
    for path in [last / "model.safetensors"] if damage == "unfinished" else list(last.iterdir()):
        path.write_bytes(path.read_bytes()[:100] if damage == "unfinished" else b"")
    model = tiny_model(MODELS[0])
    train(model, tmp_path / "killed", OFTEN)
    assert same(weights(model), weights(whole))


@pytest.mark.parametrize("name", MODELS)
def test_finished_training_is_only_loaded(tmp_path: Path, name: str) -> None:
    options = replace(OPTIONS, max_steps=-1, epochs=1.5)  # ends within an epoch
    first, again = tiny_model(name), tiny_model(name)
    summary = train(first, tmp_path, options)
    repeated = train(again, tmp_path, options, kill_after=10)
    assert same(weights(first), weights(again))
    assert (summary.steps, summary.epochs, summary.examples) == (9, 1.5, 34)  # 22, and three batches of 4
    assert replace(repeated, seconds=0) == replace(summary, seconds=0)


def test_the_state_is_read_without_unpickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(MODELS[0])
    with pytest.raises(Killed):
        train(model, tmp_path, OFTEN, kill_after=13)
    read, torch_load = [], torch.load

    def watched(file: object, *args: object, **options: object) -> object:
        read.append(options.get("weights_only"))
        return torch_load(file, *args, **options)

    monkeypatch.setattr(torch, "load", watched)
    train(tiny_model(MODELS[0]), tmp_path, OFTEN)
    assert read
    assert all(value is True for value in read)


def test_the_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    train(tiny_model(MODELS[0]), tmp_path)
    with pytest.raises(UsageError, match=r"other options; delete it to start again"):
        train(tiny_model(MODELS[0]), tmp_path, replace(OPTIONS, learning_rate=1e-3))
    (tmp_path / "training.json").write_text("{")
    with pytest.raises(ZipLMError, match="is damaged"):
        train(tiny_model(MODELS[0]), tmp_path)


def names_of(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.iterdir())


def test_every_file_of_a_checkpoint_that_is_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tiny_model(MODELS[0]), tmp_path, OFTEN, kill_after=13)
    checkpoint = tmp_path / "checkpoint-10"
    names = names_of(checkpoint)
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "whole"} < {*names}
    for name in names:
        path = checkpoint / name
        data = path.read_bytes()
        for damage in (b"", data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1]), b"[" * 10**5):
            path.write_bytes(damage)
            with pytest.raises(BadRun, match=f"{name} is damaged; delete"):
                train(tiny_model(MODELS[0]), tmp_path, OFTEN)
        path.write_bytes(data)
    (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(BadRun, match=r"optimizer.pt is damaged; delete checkpoint-10 and run the command"):
        train(tiny_model(MODELS[0]), tmp_path, OFTEN)


def test_other_files_beside_checkpoints_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tiny_model(MODELS[0]), tmp_path, OFTEN, kill_after=13)
    mine = [
        tmp_path / "checkpoint-foo",
        tmp_path / f"checkpoint-{'9' * 5000}"[:200],
        tmp_path / "checkpoint-",
    ]
    for path in mine:
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
    (tmp_path / "checkpoint-7").symlink_to(mine[0])
    train(tiny_model(MODELS[0]), tmp_path, OFTEN)
    assert {path.name for path in tmp_path.glob("checkpoint-??")} == {"checkpoint-15", "checkpoint-20"}
    assert all((path / "thesis.txt").read_text() == "mine" for path in [*mine, tmp_path / "checkpoint-7"])


def test_a_folder_of_something_else_is_not_claimed(tmp_path: Path) -> None:
    """Such as that of somebody's own Trainer, whose checkpoints look incomplete."""
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "model.safetensors").write_text("mine")
    with pytest.raises(BadRun, match="holds something else than a training; use another folder"):
        train(tiny_model(MODELS[0]), tmp_path, OFTEN)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-500"]


@pytest.mark.parametrize("damage", ["[]", "5", '{"options": NaN}', "[" * 10**5, "1" * 5000])
def test_a_damaged_record_of_the_training_is_named(tmp_path: Path, damage: str) -> None:
    train(tiny_model(MODELS[0]), tmp_path)
    (tmp_path / "training.json").write_text(damage)
    with pytest.raises(BadRun, match=r"training.json is damaged"):
        train(tiny_model(MODELS[0]), tmp_path)


def random_state() -> tuple[object, object, list[int]]:
    """Return the states of all generators that libraries seed."""
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), [str(part) for part in numpy], torch.get_rng_state().tolist()


def test_training_keeps_the_random_state_of_its_caller(tmp_path: Path) -> None:
    model = tiny_model(MODELS[0])
    before = random_state()
    train(model, tmp_path)
    assert random_state() == before


def test_a_gradual_run_keeps_the_random_state_of_its_caller(tmp_path: Path) -> None:
    import rich.style  # noqa: F401  # which draws a random number when it is imported

    options = {**gradual_options(tmp_path), "speedup": [1.5], "dropout": True}
    before = random_state()
    ziplm.compress(output=tmp_path / "run", **options)
    assert random_state() == before

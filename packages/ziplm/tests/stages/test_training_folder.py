"""Training resumes from its folder to the same weights, and refuses folders of other trainings."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ziplm import UsageError, ZipLMError, shrink
from ziplm_finetune import DISTILLED, MODELS, OFTEN, OPTIONS, Killed, same, train, weights
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

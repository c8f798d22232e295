"""`mode="finetune"`: every target is pruned from the dense model, then fine-tuned with it as teacher."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from safetensors.torch import load_file
from transformers import Trainer
from ziplm.files import read_json
from ziplm.options.toml import load_options
from ziplm.pipelines import recipe
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import learning_rate_for, make_recipe
from ziplm.runs.folder import Run
from ziplm_gradual import gradual_options
from ziplm_pipeline import lively_model
from ziplm_several import run_together
from ziplm_shared import GRADUAL, shared_options, write_shared_files
from ziplm_text import letter_tokenizer

TRAINED = {"mode": "finetune", "steps_per_target": 12, "learning_rate": 3e-3, "task_weight": 1.0}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("finetuned")
    options = {**gradual_options(folder), **TRAINED}
    ziplm.save(lively_model("BertForSequenceClassification"), folder / "lively", letter_tokenizer())
    return {**options, "model": str(folder / "lively")}


@pytest.fixture(scope="module")
def family(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ziplm.Family:
    return ziplm.compress(output=tmp_path_factory.mktemp("run") / "run", **options)


@pytest.fixture(scope="module")
def untrained(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ziplm.Family:
    own = {**options, "mode": "oneshot"}
    return ziplm.compress(output=tmp_path_factory.mktemp("oneshot") / "run", **own)


def weights_of(member: ziplm.Member) -> dict[str, torch.Tensor]:
    return ziplm.load(member.folder).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_members_have_the_sizes_of_a_oneshot_run_and_other_weights(
    family: ziplm.Family, untrained: ziplm.Family
) -> None:
    for trained, plain in zip(family, untrained, strict=True):
        assert trained.metrics["sizes"] == plain.metrics["sizes"]
        assert trained.metrics["search"] == plain.metrics["search"]
        assert trained.metrics["training"]["best_step"] > 0
        assert not same(weights_of(trained), weights_of(plain))


def test_the_model_is_pruned_once_for_all_targets(family: ziplm.Family) -> None:
    run = family[0].folder.parent
    assert len(list(run.rglob("traces/*.safetensors"))) == 6
    assert not list(run.rglob("checkpoint-*"))
    assert read_json(run / "family.json")["steps"] == 24


def test_a_member_does_not_depend_on_the_others(
    options: dict[str, Any], family: ziplm.Family, tmp_path: Path
) -> None:
    (alone,) = ziplm.compress(output=tmp_path, **{**options, "speedup": [2.5]})
    assert same(weights_of(alone), weights_of(family[1]))


def test_the_training_is_in_the_report(family: ziplm.Family) -> None:
    for member in family:
        training = member.metrics["training"]
        losses = {step: loss for step, loss, _ in training["checks"]}
        assert next(iter(losses)) == 0
        assert min(losses.values()) <= losses[training["best_step"]] < losses[0]
        assert training["checks"][0][2] is not None  # the metric, at every lowest loss
        assert [step for step, _ in training["losses"]] == list(range(1, 13))
        assert training["loss_weights"] == {"task": 1.0, "logit": 1.0, "token": 0.5}
        assert training["learning_rate"] == 3e-3


def test_a_resumed_run_ends_with_the_same_weights(
    options: dict[str, Any], family: ziplm.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, passed = Trainer.training_step, 0

    def killed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed in (4, 15, 20):  # in the first training, once resumed, and in the second one
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", killed)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(output=tmp_path, **options)
    resumed = ziplm.compress(output=tmp_path, **options)
    for one, other in zip(resumed, family, strict=True):
        assert same(weights_of(one), weights_of(other))
        assert one.metrics["training"]["checks"] == other.metrics["training"]["checks"]


def test_two_processes_make_the_members_of_one(tmp_path: Path) -> None:
    files = write_shared_files(tmp_path / "files")
    # A few steps, because Adam amplifies rounding; of one length, so that the mean of means is the mean.
    even = {**GRADUAL, "mode": "finetune", "task_weight": 1.0, "train_file": str(files / "even.csv")}
    one = ziplm.compress(**shared_options(files, "bert", tmp_path / "one", **even))
    assert run_together(shared_options(files, "bert", tmp_path / "two", **even), tmp_path / "notes") == [0, 0]
    for member in one:
        found = load_file(tmp_path / "two" / member.target / "model.safetensors")
        for name, value in load_file(member.folder / "model.safetensors").items():
            if "key.bias" not in name:  # which changes no output: Adam amplifies its rounding
                assert float((found[name] - value).abs().max()) < 5e-4, name
        report = read_json(tmp_path / "two" / member.target / "metrics.json")
        ours, theirs = member.metrics["training"], report["training"]
        assert ours["best_step"] == theirs["best_step"] > 0
        losses = [[check[1] for check in made["checks"]] for made in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_samples_kept_apart_are_not_trained_on(family: ziplm.Family) -> None:
    run = Run(family[0].folder.parent)
    start = load_start(load_options(run.options_file), run)
    made = make_recipe(start)
    assert made.apart == start.samples.judging
    assert len(made.examples) + len(made.apart) == len(start.splits.train)
    texts = [tuple(example["input_ids"]) for example in start.splits.train]
    both = [tuple(example["input_ids"]) for example in [*made.examples, *made.apart]]
    assert sorted(texts) == sorted(both)


def test_a_training_that_does_harm_is_not_kept(
    options: dict[str, Any], untrained: ziplm.Family, tmp_path: Path
) -> None:
    made = ziplm.compress(output=tmp_path, **{**options, "learning_rate": 3.0})
    for member, plain in zip(made, untrained, strict=True):
        training = member.metrics["training"]
        assert training["best_step"] == 0
        assert all(loss > training["checks"][0][1] for _, loss, _ in training["checks"][1:])
        assert same(weights_of(member), weights_of(plain))


def test_each_member_gets_a_learning_rate_by_its_distance_from_the_dense_model(
    options: dict[str, Any], untrained: ziplm.Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "LEAST_RATE_OF_WIDTH", 0.0)  # the made-up members are very close
    made = ziplm.compress(output=tmp_path, **{**options, "learning_rate": None})
    rates = [member.metrics["training"]["learning_rate"] for member in made]
    divergences = [plain.metrics["divergence"] for plain in untrained]
    hidden = ziplm.load(options["model"]).config.hidden_size
    assert rates == pytest.approx([learning_rate_for(each, hidden) for each in divergences])
    assert rates[0] != rates[1]


def test_without_labels_the_teacher_alone_teaches(tmp_path: Path) -> None:
    files = write_shared_files(tmp_path / "files")
    training = {**TRAINED, "train_batch_size": 8, "speedup": [2], "evaluations": 0, "task_weight": None}
    (member,) = ziplm.compress(**shared_options(files, "embedding", tmp_path / "run", **training))
    found = member.metrics["training"]
    assert found["best_step"] > 0
    assert all(metric is None for _, _, metric in found["checks"])


def test_a_share_of_the_metric_can_be_a_target(options: dict[str, Any], tmp_path: Path) -> None:
    (member,) = ziplm.compress(output=tmp_path, **{**options, "speedup": [], "recover": [0.5]})
    assert member.metrics["recover"]["kept"]
    assert member.metrics["training"]["steps"] == 12
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_minutes_become_a_number_of_steps_that_is_stored(options: dict[str, Any], tmp_path: Path) -> None:
    own = {**options, "speedup": [2.5], "train_minutes": 0.05}
    (member,) = ziplm.compress(output=tmp_path, **own)
    steps = read_json(tmp_path / "state/targets/2.5x/steps.json")
    assert steps > 1
    assert member.metrics["training"]["checks"][-1][0] == member.metrics["training"]["steps"] <= steps
    shutil.rmtree(tmp_path / "2.5x")
    (again,) = ziplm.compress(output=tmp_path, **own)
    assert same(weights_of(again), weights_of(member))

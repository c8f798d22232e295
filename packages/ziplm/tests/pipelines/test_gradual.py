"""Gradual compression: each target starts from the one before, and is fine-tuned."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
import ziplm.finetune as finetuning
from click.testing import CliRunner
from transformers import TrainerCallback
from ziplm.architectures.registry import architecture_of
from ziplm.cli import main
from ziplm.errors import UsageError
from ziplm.files import read_json
from ziplm.gradual import GradualMember
from ziplm.stages.levels import branch_levels, size_grid
from ziplm.pipeline import Pipeline
from ziplm.runs.progress import Silent
from ziplm.runs.folder import Run
from ziplm.options.targets import Target
from ziplm.options.training import TrainingOptions
from ziplm_gradual import gradual_options
from ziplm_models import HEADS, WIDTH, tiny_model
from ziplm_text import letter_tokenizer


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return gradual_options(tmp_path_factory.mktemp("gradual"))


@pytest.fixture(scope="module")
def family(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[ziplm.Member]:
    return ziplm.compress(output=tmp_path_factory.mktemp("run") / "run", **options)


def test_each_target_starts_from_the_one_before(family: list[ziplm.Member]) -> None:
    first, second = (member.metrics["sizes"] for member in family)
    for kind in first:
        assert all(b <= a for a, b in zip(first[kind], second[kind], strict=True))


def test_steps_read_data_as_the_dense_model_does_and_count_sparsity_from_it(
    options: dict[str, Any], family: list[ziplm.Member]
) -> None:
    config = ziplm.Options.of({**options, "output": str(family[0].folder.parent)})
    dense = Pipeline(config, Run(config.output), Silent())
    step = Pipeline(config, Run(config.output), Silent(), before=dense, model=ziplm.load(family[0].folder))
    assert step.task is dense.task  # padding and pooling are learnt from the model and the data
    half = Target("size", 0.0, (("sparsity", 0.5),))
    whole = sum(max(row) for row in dense.reachable.costs["params"])
    assert half.budgets(step.reachable, dense.reachable)["params"] == pytest.approx(whole / 2)
    assert half.budgets(step.reachable)["params"] < 0.45 * whole  # control: half of what is left


def test_speedups_refer_to_the_dense_model(family: list[ziplm.Member]) -> None:
    for member, target in zip(family, (1.5, 2.5), strict=True):
        assert member.metrics["predicted"]["speedup"] >= target - 1e-9
        assert member.metrics["dense_parameters"]["layers"] > member.metrics["parameters"]["layers"]


def test_divergences_are_from_the_dense_model(family: list[ziplm.Member]) -> None:
    run = family[0].folder.parent
    dense = Pipeline(ziplm.Options.load(run / "config.toml"), Run(run), Silent())
    for member in family:
        found = dense.divergence(ziplm.load(member.folder))
        assert member.metrics["divergence"] == pytest.approx(found, rel=1e-3)
    assert family[0].metrics["divergence"] != pytest.approx(family[1].metrics["divergence"], rel=0.01)


def test_every_target_is_trained(family: list[ziplm.Member]) -> None:
    assert [member.metrics["training"]["steps"] for member in family] == [4, 4]
    report = read_json(family[0].folder.parent / "family.json")
    assert (report["steps"], report["examples"], report["trainings"]) == (8, 64, 2)
    assert report["epochs"] == pytest.approx(64 / 80)


def test_the_results_load(family: list[ziplm.Member]) -> None:
    for member in family:
        assert ziplm.inspect(member.folder).heads == member.metrics["sizes"]["attention"]


def test_a_repeated_run_is_the_same(
    options: dict[str, Any], family: list[ziplm.Member], tmp_path: Path
) -> None:
    again = ziplm.compress(output=tmp_path / "run", **options)
    for one, other in zip(family, again, strict=True):
        assert one.metrics["search"] == other.metrics["search"]
        assert one.metrics["metrics"] == other.metrics["metrics"]
        first, second = ziplm.load(one.folder).state_dict(), ziplm.load(other.folder).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_target_more_goes_on_from_the_last(options: dict[str, Any], family: list[ziplm.Member]) -> None:
    before = (family[1].folder / "metrics.json").read_bytes()
    more = ziplm.compress(output=family[0].folder.parent, **{**options, "speedup": [1.5, 2.5, 4]})
    assert (family[1].folder / "metrics.json").read_bytes() == before
    assert sum(more[2].metrics["sizes"]["ffn"]) <= sum(family[1].metrics["sizes"]["ffn"])


def test_the_teacher_can_be_trained_first(options: dict[str, Any], tmp_path: Path) -> None:
    made = ziplm.compress(output=tmp_path, **{**options, "speedup": [2], "dense_steps": 3})
    dense, original = ziplm.load(tmp_path / "dense"), ziplm.load(options["model"])
    name = "classifier.weight"
    assert not torch.equal(dense.state_dict()[name], original.state_dict()[name])
    assert made[0].metrics["training"]["steps"] == 4
    report = read_json(tmp_path / "family.json")  # of the whole family
    assert (report["steps"], report["examples"], report["trainings"]) == (3 + 4, 8 * 7, 2)
    assert report["epochs"] == pytest.approx(8 * 7 / 80)
    seconds = read_json(tmp_path / "state" / "seconds.json")
    assert {"calibrate", "prune", "search", "finetune", "evaluate"} <= set(seconds)
    assert report["hours"] == pytest.approx(sum(seconds.values()) / 3600)
    assert report["hours"] * 3600 >= made[0].metrics["training"]["seconds"]
    shutil.rmtree(tmp_path / "state")  # as the docs allow; what it all took is still known
    ziplm.compress(output=tmp_path, **{**options, "speedup": [2], "dense_steps": 3})
    assert read_json(tmp_path / "family.json")["hours"] == pytest.approx(report["hours"], rel=0.5)


def test_a_pretrained_model_gets_a_head_and_is_trained_first(options: dict[str, Any], tmp_path: Path) -> None:
    ziplm.save(tiny_model("BertForMaskedLM"), tmp_path / "pretrained", letter_tokenizer())
    own = {**options, "model": str(tmp_path / "pretrained"), "task": "sst2", "speedup": [2]}
    own |= {"text_column": ["text"], "label_column": "label"}
    with pytest.raises(
        UsageError, match=r"is a BertForMaskedLM, but task sst2 needs .*; fine-tune the model"
    ):
        ziplm.compress(output=tmp_path / "none", **own)
    made = [ziplm.compress(output=tmp_path / name, dense_steps=2, **own)[0] for name in ("one", "two")]
    dense, small = ziplm.load(tmp_path / "one" / "dense"), ziplm.load(made[0].folder)
    assert dense.config.id2label == small.config.id2label == {0: "negative", 1: "positive"}
    weights = [ziplm.load(member.folder).state_dict()["classifier.weight"] for member in made]
    assert torch.equal(*weights)


def test_the_learning_rate_decays_anew_in_each_step(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[list[float]] = []

    class Rates(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            rates.append([])

        def on_step_end(self, *_: Any, lr_scheduler: Any, **__: Any) -> None:
            rates[-1].append(lr_scheduler.get_last_lr()[0])

    trackers: list[tuple[str, ...]] = []
    make = finetuning._arguments

    def noted(model: Any, examples: int, training: TrainingOptions, folder: Path) -> Any:
        trackers.append(training.report_to)
        return make(model, examples, replace(training, report_to=()), folder)

    monkeypatch.setattr(finetuning, "_arguments", noted)
    begin = finetuning._Trainer.__init__

    def watched(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.add_callback(Rates())

    monkeypatch.setattr(finetuning._Trainer, "__init__", watched)
    ziplm.compress(output=tmp_path, **options, learning_rate=1e-3, report_to=["tensorboard"])
    falling = pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0])
    assert rates == [falling, falling]
    assert trackers == [("tensorboard",)] * 2


def test_levels_begin_with_what_there_is(family: list[ziplm.Member]) -> None:
    model = ziplm.load(family[-1].folder)
    levels = branch_levels(architecture_of(model), model)
    grids = {"attention": list(range(HEADS, -1, -1)), "ffn": size_grid("ffn", WIDTH)}
    sizes = family[-1].metrics["sizes"]
    assert [own.sizes[0] for own in levels] == [
        size for layer in zip(*sizes.values(), strict=True) for size in layer
    ]
    for own in levels:
        below = [size for size in grids[own.module.kind] if size < own.sizes[0]]
        assert list(own.sizes) == [own.sizes[0], *below]  # one level where all is gone


def test_a_target_between_two_takes_a_step_of_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    """What was begun for 2.5x out of 1.5x is of no use to 2.5x out of 2x."""
    output = tmp_path / "run"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    ziplm.compress(output=output, **{**options, "speedup": [1.5]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ziplm.gradual.GradualMember.finetune", stop)
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(output=output, **options)
    made = ziplm.compress(output=output, **{**options, "speedup": [1.5, 2, 2.5]})
    whole = ziplm.compress(output=tmp_path / "whole", **{**options, "speedup": [1.5, 2, 2.5]})
    for one, other in zip(made, whole, strict=True):
        assert one.metrics["sizes"] == other.metrics["sizes"]
        assert one.metrics["metrics"] == other.metrics["metrics"]
    assert not list(output.rglob("checkpoint-*"))


def test_all_models_have_the_attention_that_is_asked_for(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    build = GradualMember._build

    def noted(self: GradualMember, target: Any) -> Any:
        seen.extend(
            [self.pipeline.model.config._attn_implementation, self.pipeline.dense.config._attn_implementation]
        )
        return build(self, target)

    monkeypatch.setattr(GradualMember, "_build", noted)
    ziplm.compress(output=tmp_path, **options, attention="eager", dense_steps=1)
    assert seen == ["eager"] * 4


@pytest.mark.parametrize(
    "weights",
    [
        ["--token-weight", 0],
        ["--logit-weight", 0],
        ["--task-weight", 1, "--logit-weight", 0, "--token-weight", 0],
    ],
    ids=["without tokens", "without logits", "without teacher"],
)
def test_ablations_are_options(options: dict[str, Any], tmp_path: Path, weights: list[Any]) -> None:
    """And the command says what the whole family took."""
    command = ["compress", options["model"], "--output", tmp_path / "run", *weights, "--no-dropout"]
    for name, value in {**options, "speedup": 2}.items():
        if name not in ("model", "dropout"):
            command += ["--" + name.replace("_", "-"), value]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 0, result.output
    assert "the whole family took 0.4 epochs of fine-tuning (4 steps, 32 examples) and" in result.output
    shown = CliRunner().invoke(main, ["status", str(tmp_path / "run")]).output
    assert "the whole family took" in shown
    assert "to do" not in shown


def test_without_a_teacher(options: dict[str, Any], tmp_path: Path) -> None:
    weights = {"task_weight": 1.0, "logit_weight": 0.0, "token_weight": 0.0}
    made = ziplm.compress(output=tmp_path, **{**options, "speedup": [2], **weights})
    assert made[0].metrics["training"]["steps"] == 4


def test_a_share_of_the_metric_is_no_target(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="share of the metric"):
        ziplm.compress(output=tmp_path, **{**options, "speedup": [], "recover": [0.9]})


def test_presets_fill_in_what_is_not_said() -> None:
    config = ziplm.Options("m", "sst2", "o", preset="bert-base-glue", learning_rate=1e-3)
    assert (config.mode, config.learning_rate, config.train_batch_size) == ("gradual", 1e-3, 32)
    assert config.speedup == tuple(range(2, 16))
    assert json.dumps(config.speedup)

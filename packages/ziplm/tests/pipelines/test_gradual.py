"""Gradual compression: each target starts from the one before, and is fine-tuned."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from click.testing import CliRunner
from latency_profiler import LatencyTable
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from ziplm.architectures.registry import architecture_of
from ziplm.cli import main
from ziplm.errors import UsageError
from ziplm.files import read_json
from ziplm.options.options import Options
from ziplm.options.targets import Target
from ziplm.options.toml import load_options
from ziplm.pipelines.common_steps import make_choices
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import training_options
from ziplm.runs.folder import Run
from ziplm.runs.workers import Workers
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.evaluate import divergences
from ziplm.stages.levels import branch_levels, size_grid
from ziplm.tasks import make_task
from ziplm.tasks.heads import mean_divergence
from ziplm_gradual import gradual_options
from ziplm_models import HEADS, WIDTH, tiny_model
from ziplm_text import letter_tokenizer


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return gradual_options(tmp_path_factory.mktemp("gradual"))


@pytest.fixture(scope="module")
def family(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ziplm.Family:
    return ziplm.compress(output=tmp_path_factory.mktemp("run") / "run", **options)


def test_each_target_starts_from_the_one_before(family: ziplm.Family) -> None:
    first, second = (member.metrics["sizes"] for member in family)
    for kind in first:
        assert all(b <= a for a, b in zip(first[kind], second[kind], strict=True))


def test_data_is_read_once_by_the_dense_model(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task learns padding and pooling from the dense model and the data, for all steps."""
    task = type(make_task("classification"))
    read: Callable[..., Any] = task.load_splits
    sizes = []

    def noted(self: Any, model: Any, *arguments: Any) -> Any:
        sizes.append([branch.groups for branch in architecture_of(model).branches(model)])
        return read(self, model, *arguments)

    monkeypatch.setattr(task, "load_splits", noted)
    ziplm.compress(output=tmp_path, **options)
    assert sizes == [[HEADS, WIDTH] * 3]


def test_the_sparsity_of_a_step_refers_to_the_dense_model(family: ziplm.Family) -> None:
    run = Run(family[0].folder.parent)
    start = load_start(load_options(run.options_file), run)
    table = LatencyTable.load(run.latency_file)
    dense_choices = make_choices(start, start.dense, table)
    choices = make_choices(start, ziplm.load(family[0].folder), table)
    half = Target("size", 0.0, (("sparsity", 0.5),))
    whole = sum(max(row) for row in dense_choices.costs["params"])
    assert choices.budgets(half, dense_choices)["params"] == pytest.approx(whole / 2)
    assert choices.budgets(half)["params"] < 0.45 * whole  # control: half of what is left


def test_speedups_refer_to_the_dense_model(family: ziplm.Family) -> None:
    for member, target in zip(family, (1.5, 2.5), strict=True):
        assert member.metrics["predicted"]["speedup"] >= target - 1e-9
        assert member.metrics["dense_parameters"]["layers"] > member.metrics["parameters"]["layers"]


def test_divergences_are_from_the_dense_model(family: ziplm.Family) -> None:
    run = Run(family[0].folder.parent)
    start = load_start(load_options(run.options_file), run)
    first, second = (ziplm.load(member.folder) for member in family)

    def divergence(model: PreTrainedModel, other: PreTrainedModel) -> float:
        return mean_divergence(
            divergences(model, DenseOutputs(other, start.task), start.task, start.samples.judging)
        )

    reported = [member.metrics["divergence"] for member in family]
    assert reported == pytest.approx([divergence(model, start.dense) for model in (first, second)], rel=1e-3)
    assert reported[1] != pytest.approx(divergence(second, first), rel=0.01)  # control: the step before


def test_every_target_is_trained(family: ziplm.Family) -> None:
    assert [member.metrics["training"]["steps"] for member in family] == [4, 4]
    report = read_json(family[0].folder.parent / "family.json")
    assert (report["steps"], report["examples"], report["trainings"]) == (8, 64, 2)
    assert report["epochs"] == pytest.approx(8 / 9)  # 80 examples without 10 kept apart: 9 steps an epoch


def test_all_members_can_be_loaded(family: ziplm.Family) -> None:
    for member in family:
        assert ziplm.inspect(member.folder).heads == member.metrics["sizes"]["attention"]


def test_a_repeated_run_makes_the_same_weights(
    options: dict[str, Any], family: ziplm.Family, tmp_path: Path
) -> None:
    again = ziplm.compress(output=tmp_path / "run", **options)
    for one, other in zip(family, again, strict=True):
        assert one.metrics["search"] == other.metrics["search"]
        assert one.metrics["metrics"] == other.metrics["metrics"]
        first, second = ziplm.load(one.folder).state_dict(), ziplm.load(other.folder).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_faster_target_starts_from_the_last_member(options: dict[str, Any], family: ziplm.Family) -> None:
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
    report = read_json(tmp_path / "family.json")
    assert (report["steps"], report["examples"], report["trainings"]) == (3 + 4, 8 * 7, 2)
    assert report["epochs"] == pytest.approx(7 / 9)
    seconds = read_json(tmp_path / "state" / "seconds.json")
    assert {"calibrate", "prune", "search", "finetune", "evaluate"} <= set(seconds)
    assert report["hours"] == pytest.approx(sum(seconds.values()) / 3600)
    assert report["hours"] * 3600 >= made[0].metrics["training"]["seconds"]
    shutil.rmtree(tmp_path / "state")  # as the docs allow; the members still know their times
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


def test_each_step_is_trained_with_a_new_schedule_and_the_same_trackers(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[list[float]] = []

    class Rates(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            rates.append([])

        def on_step_end(self, *_: Any, lr_scheduler: Any, **__: Any) -> None:
            rates[-1].append(lr_scheduler.get_last_lr()[0])

    trackers: list[list[str]] = []
    make, train = TrainingArguments.__init__, Trainer.train

    def made_without_trackers(self: Any, *values: Any, report_to: list[str], **named: Any) -> None:
        trackers.append(report_to)
        make(self, *values, report_to="none", **named)

    def watched(self: Any, **named: Any) -> Any:
        self.add_callback(Rates())
        return train(self, **named)

    monkeypatch.setattr(TrainingArguments, "__init__", made_without_trackers)
    monkeypatch.setattr(Trainer, "train", watched)
    ziplm.compress(output=tmp_path, **options, learning_rate=1e-3, warmup=0.0, report_to=["tensorboard"])
    falling = pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0])
    assert rates == [falling, falling]
    assert trackers == [["tensorboard"]] * 2


def test_the_levels_of_a_member_start_at_its_own_sizes(family: ziplm.Family) -> None:
    model = ziplm.load(family[-1].folder)
    levels = branch_levels(architecture_of(model), model)
    grids = {"attention": list(range(HEADS, -1, -1)), "ffn": size_grid("ffn", WIDTH)}
    sizes = family[-1].metrics["sizes"]
    assert [own.sizes[0].groups for own in levels] == [
        size for layer in zip(*sizes.values(), strict=True) for size in layer
    ]
    for own in levels:
        below = [groups for groups in grids[own.branch.kind] if groups < own.branch.groups]
        # A removed branch has one level.
        assert [size.groups for size in own.sizes] == [own.branch.groups, *below]


def test_a_target_between_two_others_takes_a_step_of_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    """Intermediate results for 2.5x from 1.5x are not used for 2.5x from 2x."""
    output = tmp_path / "run"

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    ziplm.compress(output=output, **{**options, "speedup": [1.5]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train", stop)
        with pytest.raises(KeyboardInterrupt):
            ziplm.compress(output=output, **options)
    assert (output / "state/steps/2.5x-from-1.5x").is_dir()
    made = ziplm.compress(output=output, **{**options, "speedup": [1.5, 2, 2.5]})
    whole = ziplm.compress(output=tmp_path / "whole", **{**options, "speedup": [1.5, 2, 2.5]})
    for one, other in zip(made, whole, strict=True):
        assert one.metrics["sizes"] == other.metrics["sizes"]
        assert one.metrics["metrics"] == other.metrics["metrics"]
    assert not list(output.rglob("checkpoint-*"))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_all_models_have_the_attention_that_is_asked_for(
    options: dict[str, Any], tmp_path: Path, attention: str
) -> None:
    seen = {}

    def note(module: torch.nn.Module, *_: Any) -> None:
        if isinstance(module, PreTrainedModel):
            seen[module] = module.config._attn_implementation

    with register_module_forward_pre_hook(note):
        ziplm.compress(output=tmp_path, **options, attention=attention, dense_steps=1)
    assert set(seen.values()) == {attention}
    assert len(seen) > 4  # at least the dense and the current model of each step


@pytest.mark.parametrize(
    "weights",
    [
        ["--token-weight", 0],
        ["--logit-weight", 0],
        ["--task-weight", 1, "--logit-weight", 0, "--token-weight", 0],
    ],
    ids=["without tokens", "without logits", "without teacher"],
)
def test_each_part_of_the_loss_can_be_left_out(
    options: dict[str, Any], tmp_path: Path, weights: list[Any]
) -> None:
    """The command also prints what the whole family took."""
    command = ["compress", options["model"], "--output", tmp_path / "run", *weights, "--no-dropout"]
    for name, value in {**options, "speedup": 2}.items():
        if name not in ("model", "dropout"):
            command += ["--" + name.replace("_", "-"), value]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 0, result.output
    assert "the whole family took 0.444 epochs of fine-tuning (4 steps, 32 examples) and" in result.output
    shown = CliRunner().invoke(main, ["status", str(tmp_path / "run")]).output
    assert "the whole family took" in shown
    assert "to do" not in shown


def test_a_run_may_have_no_teacher(options: dict[str, Any], tmp_path: Path) -> None:
    weights = {"task_weight": 1.0, "logit_weight": 0.0, "token_weight": 0.0}
    made = ziplm.compress(output=tmp_path, **{**options, "speedup": [2], **weights})
    assert made[0].metrics["training"]["steps"] == 4


def test_a_share_of_the_metric_is_refused_as_a_target(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="share of the metric"):
        ziplm.compress(output=tmp_path, **{**options, "speedup": [], "recover": [0.9]})


def test_a_preset_sets_the_options_that_are_not_given() -> None:
    options = Options(model="m", task="sst2", output="o", preset="bert-base-glue", learning_rate=1e-3)
    assert (options.mode, options.learning_rate, options.train_batch_size) == ("gradual", 1e-3, 32)
    assert options.speedup == tuple(range(2, 16))
    assert json.dumps(options.speedup)


def test_a_batch_that_processes_cannot_share_is_refused() -> None:
    options = Options(model="m", task="sst2", output="o", train_batch_size=6)
    assert training_options(options, Workers(0, 3)).batch_size == 2
    with pytest.raises(UsageError, match="train_batch_size 6 cannot be shared by 4 processes; give a"):
        training_options(options, Workers(0, 4))

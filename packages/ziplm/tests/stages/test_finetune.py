"""Fine-tuning with and without a teacher, in one process and in two."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from token_distill import DistillationLoss, Outputs
from ziplm import UsageError, ZipLMError, load, save, shrink
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm_finetune import DISTILLED, MODELS, OPTIONS, difference, same, train, weights
from ziplm_models import VOCABULARY, make_traces, removed_by, tiny_model
from ziplm_training import PaddedTask, examples


@pytest.mark.parametrize("name", MODELS)
def test_training_a_model_does_not_change_its_teacher(tmp_path: Path, name: str) -> None:
    teacher = tiny_model(name)
    student = shrink(teacher, removed_by(teacher, "some heads"), make_traces(teacher))
    shared = {value.data_ptr() for value in teacher.parameters()}
    assert shared & {value.data_ptr() for value in student.parameters()}
    before, start = weights(teacher), weights(student)
    train(student, tmp_path, teacher=teacher, loss=DISTILLED)
    assert same(weights(teacher), before)
    assert not same(weights(student), start)
    tied = student.get_output_embeddings()
    assert tied is None or tied.weight is student.get_input_embeddings().weight


@pytest.mark.parametrize("name", MODELS)
def test_distillation_compares_only_the_remaining_layers(tmp_path: Path, name: str) -> None:
    teacher = tiny_model(name)
    student = shrink(teacher, removed_by(teacher, "a whole layer"), make_traces(teacher))
    data = examples(name, 8)
    batch = PaddedTask().collate(data)

    def value(layers: Sequence[int] | None) -> float:
        with torch.no_grad():
            own, taught = (model(**batch, output_hidden_states=True) for model in (student, teacher))
            return DISTILLED(
                Outputs.of(own),
                Outputs.of(taught),
                task_loss=own.loss,
                mask=batch["attention_mask"],
                layers=layers,
            ).total.item()

    expected, wrong = value([0, 2]), value(None)
    options = replace(OPTIONS, max_steps=1, batch_size=8, dropout=False)
    summary = finetune(student, PaddedTask(), data, options, teacher=teacher, loss=DISTILLED, folder=tmp_path)
    assert summary.losses[0][1] == pytest.approx(expected, rel=1e-5)
    assert abs(wrong - expected) > 1e-3 * expected


def test_without_remaining_layers_the_other_losses_are_used(tmp_path: Path) -> None:
    teacher = tiny_model(MODELS[0])
    student = shrink(teacher, removed_by(teacher, "everything"), make_traces(teacher))
    assert train(student, tmp_path / "a", teacher=teacher, loss=DISTILLED).steps == 20
    with pytest.raises(UsageError, match="every layer is pruned away"):
        train(student, tmp_path / "b", teacher=teacher, loss=DistillationLoss(task=0, token=1.0))


@pytest.mark.parametrize("name", MODELS)
def test_dropout_is_switched_off_for_the_training_only(tmp_path: Path, name: str) -> None:
    data = examples(name, 8)
    firsts = {}
    for dropout in (False, True):
        model = tiny_model(name)
        rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        with torch.no_grad():
            expected = model(**PaddedTask().collate(data)).loss.item()
        options = replace(OPTIONS, max_steps=1, batch_size=8, dropout=dropout)
        summary = finetune(model, PaddedTask(), data, options, folder=tmp_path / str(dropout))
        firsts[dropout] = summary.losses[0][1]
        assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == rates
        assert all(rate > 0 for rate in rates)
    assert firsts[False] == pytest.approx(expected, rel=1e-5)
    assert firsts[True] != pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("distilled", [False, True])
def test_accumulated_gradients_equal_those_of_the_large_batch(
    tmp_path: Path, name: str, distilled: bool
) -> None:
    data = examples(name, 8)
    for example in data:  # of equal length, so that the mean of means is the mean
        example["input_ids"] = example["input_ids"][:4]
        if "LM" in name:
            example["labels"] = example["input_ids"]
    ends = []
    for batch_size in (8, 2, 4):
        model, teacher = tiny_model(name), tiny_model(name)
        options = replace(
            OPTIONS,
            learning_rate=1e-3,
            max_steps=3,
            dropout=False,
            batch_size=batch_size,
            gradient_accumulation=4 if batch_size == 2 else 1,
        )
        with torch.no_grad():
            for parameter in teacher.parameters():
                parameter.mul_(0.9)
        teaching = {"teacher": teacher, "loss": DISTILLED} if distilled else {}
        finetune(model, PaddedTask(), data, options, folder=tmp_path / str(batch_size), **teaching)
        ends.append(weights(model))
    start = weights(tiny_model(name))
    assert difference(ends[0], ends[1]) < 1e-2 * difference(ends[0], start)
    assert difference(ends[0], ends[2]) > 1e-1 * difference(ends[0], start)


def test_a_trained_model_can_be_used_and_saved(tmp_path: Path) -> None:
    model = tiny_model("GPT2LMHeadModel")
    train(model, tmp_path / "training")
    assert model.config.use_cache  # which Trainer switches off
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    save(model, tmp_path / "model")
    assert same(weights(load(tmp_path / "model")), weights(model))


def test_distillation_brings_the_student_closer_to_its_teacher(tmp_path: Path) -> None:
    teacher = tiny_model(MODELS[0])
    student = shrink(teacher, removed_by(teacher, "heads and columns"), make_traces(teacher))
    options = replace(OPTIONS, learning_rate=3e-3, max_steps=50, dropout=False)
    closer = DistillationLoss(task=0.0, logit=0.5, token=0.5)
    losses = train(student, tmp_path, options, teacher=teacher, loss=closer).losses
    assert [step for step, _ in losses] == list(range(1, 51))
    assert sum(loss for _, loss in losses[-5:]) < sum(loss for _, loss in losses[:5]) / 2


@pytest.mark.parametrize("distilled", [False, True])
def test_training_stops_at_the_step_of_the_first_nan(tmp_path: Path, distilled: bool) -> None:
    model = tiny_model(MODELS[0])
    data = examples(MODELS[0], 8)
    with torch.no_grad():
        model.get_input_embeddings().weight[VOCABULARY - 1] = torch.nan
    poisoned = {**data[0], "input_ids": [VOCABULARY - 1] * 12}
    teaching = {"teacher": tiny_model(MODELS[0]), "loss": DISTILLED} if distilled else {}
    with pytest.raises(
        ZipLMError, match=r"nan.* at step [1-4]; try a smaller learning rate, or precision float32$"
    ) as caught:
        finetune(model, PaddedTask(), [*data[1:], poisoned], OPTIONS, folder=tmp_path, **teaching)
    assert "\n" not in str(caught.value)


def test_weights_that_overflow_in_the_last_step_are_reported(tmp_path: Path) -> None:
    options = replace(OPTIONS, learning_rate=1e38, max_steps=1, warmup_ratio=0.0, weight_decay=1e38)
    with pytest.raises(ZipLMError, match="the weights became nan or infinite at step 1"):
        train(tiny_model(MODELS[0]), tmp_path, options)


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"epochs": 0.0, "max_steps": -1},
        {"max_steps": 0},
        {"batch_size": 0},
        {"gradient_accumulation": 0},
        {"weight_decay": -1.0},
        {"max_grad_norm": float("inf")},
        {"warmup_ratio": 1.0},
        {"schedule": "zigzag"},
        {"precision": "int4"},
        {"checkpoints": 0},
    ],
)
def test_training_options_out_of_range_are_refused(bad: dict[str, object]) -> None:
    name, value = next(iter(bad.items()))
    with pytest.raises(UsageError, match=f"{name} is {value!r}; it must"):
        replace(OPTIONS, **bad)


def test_arguments_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    model = tiny_model(MODELS[0])
    with pytest.raises(UsageError, match="no examples"):
        finetune(model, PaddedTask(), [], OPTIONS, folder=tmp_path)
    with pytest.raises(UsageError, match="a teacher and no loss"):
        train(model, tmp_path, teacher=tiny_model(MODELS[0]))
    with pytest.raises(UsageError, match="the loss needs a teacher, but there is none"):
        train(model, tmp_path, loss=DISTILLED)
    with pytest.raises(UsageError, match="is the model that is trained"):
        train(model, tmp_path, teacher=model, loss=DISTILLED)
    with pytest.raises(UsageError, match="bf16 needs a GPU"):
        train(model, tmp_path, replace(OPTIONS, precision="bf16"))
    with pytest.raises(UsageError, match="classes differ, 2 of the student and 3 of the teacher"):
        train(model, tmp_path / "shapes", teacher=tiny_model(MODELS[0], num_labels=3), loss=DISTILLED)
    shutil.rmtree(tmp_path / "shapes")
    bare = tiny_model("BertModel")
    with pytest.raises(UsageError, match="BertModel has no loss of its own"):
        train(bare, tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "ziplm_training.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    with subprocess.Popen(
        [*launch, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            _, errors = running.communicate(timeout=280)  # imports take seconds, or minutes on a busy machine
        except subprocess.TimeoutExpired:
            running.terminate()  # torchrun then ends its processes, too
            raise
    assert running.returncode == 0, errors
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [report["progress"] for report in reports] == [[7, 8], []]
    assert reports[0]["weights"] == reports[1]["weights"]
    one = tiny_model(MODELS[0])
    options = TrainingOptions(learning_rate=1e-2, max_steps=8, batch_size=8, dropout=False, checkpoints=4)
    finetune(one, PaddedTask(), examples(MODELS[0], 32), options, folder=tmp_path / "one")
    two = {name: torch.tensor(value) for name, value in reports[0]["weights"].items()}
    start = weights(tiny_model(MODELS[0]))
    assert difference(weights(one), two) < 1e-2 * difference(weights(one), start)

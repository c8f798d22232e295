"""Samples kept apart from a training decide which weights it ends with, and when it ends."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from token_distill import DistillationLoss, Outputs
from transformers import PreTrainedModel, TrainerState
from ziplm.errors import BadRun, UsageError
from ziplm.options.training import Check, TrainingOptions, TrainingSummary
from ziplm.stages.finetune import finetune
from ziplm.stages.shrink import shrink
from ziplm.stages.trainer import PARTS, DistillationTrainer, is_over, kept_step
from ziplm.stages.training_time import steps_within
from ziplm.tasks import Features
from ziplm.tasks.heads import Classification, Divergence
from ziplm_finetune import Killed, same, weights
from ziplm_models import make_traces, removed_by
from ziplm_pipeline import CLASSIFIER, MadeUpTask, lively_model, samples

OPTIONS = TrainingOptions(learning_rate=1e-2, max_steps=20, batch_size=4, dropout=False, checkpoints=5)
LOSS = DistillationLoss(task=0.2, logit=0.5, token=0.3)


class JudgedTask(MadeUpTask):
    """A task whose metric is the number of the evaluation, from 1."""

    judged_so_far = 0

    def judged(self, model: PreTrainedModel, features: Sequence[Features]) -> float | None:
        self.judged_so_far += 1
        return float(self.judged_so_far)


def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    teacher = lively_model(CLASSIFIER)
    return shrink(teacher, removed_by(teacher, "heads and columns"), make_traces(teacher)), teacher


def train(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    folder: Path,
    options: TrainingOptions = OPTIONS,
    kill_after: int | None = None,
    **more: Any,
) -> TrainingSummary:
    def progress(done: int, total: int) -> None:
        if done == kill_after:
            raise Killed

    return finetune(
        student,
        JudgedTask(Classification()),
        samples(CLASSIFIER, 22),
        options,
        teacher=teacher,
        folder=folder,
        progress=progress,
        **{"loss": LOSS, "apart": samples(CLASSIFIER, 40, seed=1), **more},
    )


@torch.no_grad()
def loss_of(student: PreTrainedModel, teacher: PreTrainedModel, features: Sequence[Features]) -> float:
    """Compute the mean loss of the outputs over samples one by one."""
    losses, by = [], replace(LOSS, token=0.0)
    for feature in features:
        batch = MadeUpTask(Classification()).collate([feature])
        own = student(**batch, output_hidden_states=True)
        taught = teacher(**batch, output_hidden_states=True)
        parts = by(Outputs.of(own), Outputs.of(taught), task_loss=own.loss, mask=batch["attention_mask"])
        losses.append(parts.total.item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("rate", "last_is_best"), [(3e-3, True), (0.4, False)])
def test_the_model_ends_with_the_weights_of_the_lowest_loss_or_the_last_ones(
    tmp_path: Path, rate: float, last_is_best: bool
) -> None:
    student, teacher = pair()
    states: dict[int, dict[str, torch.Tensor]] = {}
    checks: list[Check] = []

    def note(check: Check) -> None:
        states[check.step] = weights(student)
        checks.append(check)

    # Of one length, so that the mean over batches is the mean over samples and tokens.
    apart = [
        {name: value[:3] if isinstance(value, list) else value for name, value in sample.items()}
        for sample in samples(CLASSIFIER, 40, seed=1)
    ]
    summary = train(
        student, teacher, tmp_path, replace(OPTIONS, learning_rate=rate), checked=note, apart=apart
    )
    assert list(states) == [0, 4, 8, 12, 16, 20]
    assert summary.checks == tuple(checks)
    own = {}
    for step, state in states.items():
        student.load_state_dict(state)
        own[step] = loss_of(student, teacher, apart)
    assert [check.loss for check in checks] == pytest.approx(list(own.values()), rel=1e-4)
    lowest_step = min(own, key=lambda step: own[step])
    best = 20 if last_is_best else lowest_step
    assert summary.best_step == best
    again, teacher = pair()
    train(again, teacher, tmp_path, replace(OPTIONS, learning_rate=rate), apart=apart)  # only loads weights
    assert same(weights(again), states[best])
    lowest = [check for n, check in enumerate(checks) if all(check.loss < c.loss for c in checks[:n])]
    assert [check.metric for check in lowest] == [float(n + 1) for n in range(len(lowest))]
    assert all(check.metric is None for check in checks if check not in lowest)


def test_a_training_that_does_not_improve_ends_early_and_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its losses are made up: at a rate that is too high, they depend on the rounding of the machine."""
    losses = itertools.count(1.0)
    monkeypatch.setattr(DistillationTrainer, "_losses_apart", lambda _: 2 * [Divergence(next(losses), 1)])
    student, teacher = pair()
    before = weights(student)
    bad = replace(OPTIONS, learning_rate=0.1, patience=2)
    summary = train(student, teacher, tmp_path, bad)
    assert (summary.steps, summary.best_step) == (12, 0)
    assert [check.loss for check in summary.checks] == [1, 2, 3, 4]
    assert same(weights(student), before)
    assert not student.training
    endless, teacher = pair()
    assert train(endless, teacher, tmp_path / "endless", replace(bad, patience=0)).steps == 20
    again, teacher = pair()
    assert train(again, teacher, tmp_path, bad).checks == summary.checks  # it is finished, and only read


@pytest.mark.parametrize(
    ("losses", "spread", "over"),
    [
        ([1.0, 3.0, 2.5, 2.0], 0.0, False),  # above its start, but falling
        ([1.0, 2.0, 2.5, 3.0], 0.0, True),
        ([1.0, 0.5, 0.6, 0.7], 0.0, True),
        ([1.0, 0.5, 0.6, 0.7], 0.3, False),  # it may be chance
        ([1.0, 0.5, 0.6], 0.0, False),
        ([1.0], 0.0, False),
    ],
)
def test_a_training_ends_when_the_loss_of_its_own_states_has_clearly_not_fallen_for_two_checks(
    losses: list[float], spread: float, over: bool
) -> None:
    history: list[Any] = [
        {"step": 5 * n, "eval_loss": loss, PARTS: [[loss - n * spread, 1], [loss + n * spread, 1]]}
        for n, loss in enumerate(losses)
    ]
    state = TrainerState(global_step=history[-1]["step"], max_steps=100, log_history=history)
    assert is_over(state, 2) == over
    assert not is_over(state, 0)
    assert is_over(TrainerState(global_step=100, max_steps=100, log_history=history), 0)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([(1.0, 1.0), (0.8, 0.8), (0.5, 0.5)], 2),
        ([(1.0, 1.0), (0.5, 0.5), (0.2, 1.1)], 2),  # higher, but only in one of two batches
        ([(1.0, 1.0), (0.5, 0.5), (0.6, 0.61)], 1),  # clearly higher
        ([(1.0, 1.0), (1.1, 1.1), (0.1, 2.0)], 2),  # the training may have gained something
        ([(1.0, 1.0), (1.1, 1.1), (1.2, 1.21)], 0),  # it has lost something
        ([(1.0,), (0.5,), (0.6,)], 2),  # a single batch tells nothing about chance
    ],
)
def test_the_last_state_is_kept_unless_another_is_clearly_better(
    parts: list[tuple[float, ...]], kept: int
) -> None:
    losses = [math.fsum(own) / len(own) for own in parts]
    history: list[Any] = [
        {"step": number, "eval_loss": loss, PARTS: [[part, 1] for part in own]}
        for number, (loss, own) in enumerate(zip(losses, parts, strict=True))
    ]
    lowest = losses.index(min(losses))
    state = TrainerState(global_step=2, max_steps=2, log_history=history, best_global_step=lowest)
    assert kept_step(state) == kept
    # A training that ended early has not come to its small steps: its last state is worth no more.
    early = TrainerState(global_step=2, max_steps=9, log_history=history, best_global_step=lowest)
    assert kept_step(early) == lowest


def test_a_last_state_without_a_check_is_not_kept() -> None:
    history = [{"step": 0, "eval_loss": 1.0}, {"step": 2, "eval_loss": 0.5}]
    state = TrainerState(global_step=3, max_steps=3, log_history=history, best_global_step=2)
    assert kept_step(state) == 2


def test_without_samples_kept_apart_the_last_weights_are_kept(tmp_path: Path) -> None:
    student, teacher = pair()
    before = weights(student)
    summary = train(student, teacher, tmp_path, replace(OPTIONS, learning_rate=0.3, patience=1), apart=())
    assert (summary.steps, summary.best_step, summary.checks) == (20, 20, ())
    assert not same(weights(student), before)


@pytest.mark.parametrize("kills", [(1,), (6, 11), (8, 8, 19)])
def test_a_killed_training_resumes_to_the_same_weights_and_checks(
    tmp_path: Path, kills: tuple[int, ...]
) -> None:
    whole, teacher = pair()
    expected = train(whole, teacher, tmp_path / "whole")
    for kill in kills:
        with pytest.raises(Killed):
            train(*pair(), tmp_path / "killed", kill_after=kill)
    resumed, teacher = pair()
    summary = train(resumed, teacher, tmp_path / "killed")
    assert same(weights(resumed), weights(whole))
    assert [check[:2] for check in summary.checks] == [check[:2] for check in expected.checks]
    assert summary.best_step == expected.best_step


def test_only_the_last_two_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    student, teacher = pair()
    summary = train(student, teacher, tmp_path)
    kept = {int(path.name.removeprefix("checkpoint-")) for path in tmp_path.glob("checkpoint-*")}
    lowest = min(summary.checks, key=lambda check: check.loss).step
    assert kept == {16, 20} | ({lowest} - {0})


def test_a_missing_or_damaged_best_checkpoint_is_reported(tmp_path: Path) -> None:
    student, teacher = pair()
    best = tmp_path / f"checkpoint-{train(student, teacher, tmp_path).best_step}"
    data = (best / "model.safetensors").read_bytes()
    (best / "model.safetensors").write_bytes(data[:-1])
    with pytest.raises(BadRun, match=r"model.safetensors is damaged"):
        train(*pair(), tmp_path)


def test_a_folder_belongs_to_a_training_with_as_many_samples_kept_apart(tmp_path: Path) -> None:
    train(*pair(), tmp_path)
    with pytest.raises(UsageError, match="a training with other samples kept apart"):
        train(*pair(), tmp_path, apart=samples(CLASSIFIER, 8, seed=1))


def test_a_time_becomes_a_number_of_steps_and_changes_nothing(tmp_path: Path) -> None:
    student, teacher = pair()
    before = weights(student)
    task, features = MadeUpTask(Classification()), samples(CLASSIFIER, 22)
    found = [
        steps_within(
            seconds, student, task, features, OPTIONS, teacher=teacher, loss=LOSS, folder=tmp_path / "timing"
        )
        for seconds in (1e-9, 1e3)
    ]
    assert found[0] == 1
    assert found[1] > 100
    assert same(weights(student), before)
    assert not list(tmp_path.iterdir())


def test_states_are_judged_by_outputs_and_not_by_hidden_states(tmp_path: Path) -> None:
    with_tokens = replace(LOSS, token=100.0)
    options = replace(OPTIONS, max_steps=2, checkpoints=1)
    before, before_with_tokens = (
        train(*pair(), tmp_path / name, options, loss=loss).checks[0].loss
        for name, loss in (("few", LOSS), ("many", with_tokens))
    )
    assert before == pytest.approx(before_with_tokens)
    only_tokens = replace(LOSS, task=0.0, logit=0.0)  # control: there is nothing else to judge by
    assert train(*pair(), tmp_path / "only", options, loss=only_tokens).checks[0].loss > 2 * before

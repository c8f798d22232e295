"""A model that computes nan or infinities is an error in every stage, and never a result."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from ziplm import save
from ziplm.architectures.registry import architecture_of
from ziplm.cli import main
from ziplm.errors import NotFinite
from ziplm.options.setting import Setting
from ziplm.options.source import Source
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.evaluate import divergences
from ziplm.stages.measure import compare_models
from ziplm.stages.profile import latency_table
from ziplm.stages.search import find_levels
from ziplm.tasks import TASKS, make_task
from ziplm_choices import WRONG, choices_with, parts_of, predicted, true_loss, true_parts
from ziplm_finetune import train
from ziplm_pipeline import ARCHITECTURES, CLASSIFIER, lively_model, samples, task_for
from ziplm_tasks import file_for, model_for
from ziplm_text import bare_tokenizer, letter_rows, letter_tokenizer, write_rows

BROKEN = [torch.nan, torch.inf, -torch.inf]


@torch.no_grad()
def break_weights(model: PreTrainedModel, value: float, place: int = -1) -> PreTrainedModel:
    """Put a value that is not finite into one parameter; the last is in the head."""
    list(model.parameters())[place].view(-1)[0] = value
    return model


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("name", TASKS)
def test_no_task_scores_a_broken_model(name: str, value: float, tmp_path: Path) -> None:
    model, task = model_for(name), make_task(name)
    tokenizer = bare_tokenizer() if name == "causal-lm" else letter_tokenizer()
    source = Source(validation_file=file_for(name, tmp_path), train=False)
    splits = task.load_splits(model, tokenizer, source, 16).evaluation
    features = next(iter(splits.values()))
    task.prepare_reference(model, features)
    task.evaluate(model, features)  # control
    # The pooler comes last in a bare model, and embeddings do not use it.
    break_weights(model, value, place=-3 if name == "embedding" else -1)
    with pytest.raises(NotFinite, match="not finite"):
        task.evaluate(model, features)


def test_evaluate_ends_with_exit_code_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Version 0.1 printed an accuracy of 0.45, because the largest of several nan is the first."""
    model = break_weights(lively_model(CLASSIFIER), torch.nan)
    save(model, tmp_path / "model", letter_tokenizer())
    data = write_rows(tmp_path / "valid.csv", letter_rows())
    arguments = ["evaluate", str(tmp_path / "model"), "--task", "classification", "--validation-file", data]
    with pytest.raises(SystemExit) as stopped:
        main.main(arguments)
    assert stopped.value.code == 8
    assert "the model's outputs are not finite" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["model", "reference"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_divergence_of_a_broken_model_is_an_error(name: str, broken: str) -> None:
    models = {"model": lively_model(name), "reference": lively_model(name)}
    break_weights(models[broken], torch.nan)
    with pytest.raises(NotFinite, match="not finite"):
        divergences(
            models["model"],
            DenseOutputs(models["reference"], task_for(name)),
            task_for(name),
            samples(name, 4),
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("place", [0, 12, -1])
def test_a_calibration_of_a_broken_model_is_an_error(name: str, place: int) -> None:
    model = lively_model(name)
    branches, features = architecture_of(model).branches(model), samples(name, 4)
    with torch.no_grad():
        list(model.parameters())[place].fill_(torch.nan)
    with pytest.raises(NotFinite, match="not finite"):
        gather_fisher(model, task_for(name), features)
    with pytest.raises(NotFinite, match="not finite"):
        gather_statistics(model, task_for(name), features, branches, {})


def losses_with(value: float, after: int) -> Callable[[Sequence[int]], float]:
    """Return a loss that is right for some calls, and then not finite."""
    calls = []

    def loss(removed: Sequence[int]) -> float:
        calls.append(removed)
        return true_loss(removed) if len(calls) <= after else value

    return loss


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize(("loss_after", "judge_after"), [(0, 9), (2, 9), (99, 0), (99, 1)])
def test_a_search_with_a_loss_that_is_not_finite_is_an_error(
    value: float, loss_after: int, judge_after: int
) -> None:
    choices = choices_with(wrong=WRONG)
    budgets = {"seconds": 0.5 * predicted(choices, (0,) * 6)}
    loss, judge = losses_with(value, loss_after), parts_of(losses_with(value, judge_after))
    with pytest.raises(NotFinite, match="the loss of a shrunk model is"):
        find_levels(choices, budgets, ["wrong"], loss, judge, evaluations=20)
    find_levels(choices, budgets, ["wrong"], true_loss, true_parts, evaluations=20)  # control


def test_a_broken_model_is_not_measured() -> None:
    models = {"dense": lively_model(CLASSIFIER), "small": break_weights(lively_model(CLASSIFIER), torch.nan)}
    setting = Setting(batch_size=1, lengths=(8,), threads=1)
    with pytest.raises(NotFinite, match="the outputs of small are not finite"):
        compare_models(models, setting, max_seconds=0.1)
    with pytest.raises(NotFinite, match="the outputs of the model are not finite"):
        latency_table(models["small"], setting, max_seconds=0.1)


def test_a_training_with_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    model = break_weights(lively_model(CLASSIFIER), torch.nan)
    with pytest.raises(NotFinite, match="the loss became nan at step 1"):
        train(model, tmp_path / "training")

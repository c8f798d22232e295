"""The recipe of a run's trainings: what presets and options say, and what is decided otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from token_distill import DistillationLoss
from ziplm.options.options import Options
from ziplm.options.presets import find_preset
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.recipe import (
    LEAST_RATE_OF_WIDTH,
    MOST_RATE_OF_WIDTH,
    Recipe,
    learning_rate_for,
    make_recipe,
    with_checks,
)
from ziplm.pipelines.values import Start
from ziplm.runs.folder import Run
from ziplm_models import HIDDEN
from ziplm_shared import shared_options, write_shared_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_files(tmp_path_factory.mktemp("files"))


def start_of(files: Path, name: str = "bert", **more: Any) -> Start:
    """Load the start of a run with training."""
    asked = {**shared_options(files, name, files / "none"), "mode": "finetune", **more}
    return load_start(Options(**asked), Run(files / "none"))


@pytest.mark.parametrize("mode", ["finetune", "gradual"])
def test_a_preset_is_the_papers_recipe(files: Path, mode: str) -> None:
    start = start_of(files, mode=mode, preset="bert-base-glue", dense_steps=0, calibration_samples=40)
    recipe, paper = make_recipe(start), find_preset("bert-base-glue")
    assert recipe.training == paper.between
    assert recipe.loss == DistillationLoss.preset("glue")
    assert recipe.apart == []
    assert len(recipe.examples) == 80
    own = make_recipe(start_of(files, mode=mode))  # control
    assert own.training != paper.between
    assert own.loss != recipe.loss
    assert (len(own.examples), len(own.apart)) == (80 - 12, 12)


def test_the_learning_rate_grows_with_the_distance_from_the_dense_model() -> None:
    near, far = learning_rate_for(0.01, HIDDEN), learning_rate_for(0.04, HIDDEN)
    assert far == pytest.approx(2 * near)  # the divergence is like a squared distance
    assert learning_rate_for(0.01, 2 * HIDDEN) == pytest.approx(near / 2)
    assert learning_rate_for(0.0, HIDDEN) == learning_rate_for(-1e-9, HIDDEN) == LEAST_RATE_OF_WIDTH / HIDDEN
    assert learning_rate_for(1e9, HIDDEN) == MOST_RATE_OF_WIDTH / HIDDEN
    assert LEAST_RATE_OF_WIDTH / HIDDEN < near < far < MOST_RATE_OF_WIDTH / HIDDEN


def test_dropout_is_off_with_a_teacher_unless_it_is_asked_for(files: Path) -> None:
    alone = {"task_weight": 1.0, "logit_weight": 0.0, "token_weight": 0.0}
    assert not make_recipe(start_of(files)).training.dropout
    assert make_recipe(start_of(files, **alone)).training.dropout
    assert make_recipe(start_of(files, dropout=True)).training.dropout
    assert not make_recipe(start_of(files, dropout=False, **alone)).training.dropout


def test_labels_are_left_to_the_teacher_except_by_language_models(files: Path) -> None:
    labelled, embedder = (make_recipe(start_of(files, name)).loss for name in ("bert", "embedding"))
    assert (labelled.task, labelled.logit, labelled.token, labelled.cosine) == (0.0, 1.0, 0.5, 0.0)
    assert (embedder.task, embedder.logit, embedder.token, embedder.cosine) == (0.0, 0.0, 0.5, 1.0)
    assert make_recipe(start_of(files, task_weight=0.5)).loss.task == 0.5
    assert make_recipe(start_of(files, "gpt2")).loss.task == 1.0


@pytest.mark.parametrize(
    ("steps", "processes", "checks"), [(4, 1, 2), (30, 1, 8), (30, 2, 10), (10_000, 1, 10)]
)
def test_checks_take_a_small_part_of_the_training(
    files: Path, steps: int, processes: int, checks: int
) -> None:
    """Twelve samples are kept apart; a fifth as many are checked as are trained on."""
    recipe = make_recipe(start_of(files))
    asked: Recipe = replace(recipe, training=replace(recipe.training, max_steps=steps, batch_size=16))
    made = with_checks(asked, processes).training
    assert made.checkpoints == checks
    assert made.patience == max(2, 4 * checks // 5)
    assert with_checks(replace(asked, apart=[]), processes).training == asked.training

"""Embedders learn from their teacher without labels."""

from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import distillation_loss
from ziplm.tasks.heads import Classification, Embedding
from ziplm_shared import GRADUAL, shared_options, write_shared_files

TRAINING = TrainingOptions(max_steps=4, batch_size=8, learning_rate=1e-2, dropout=False, checkpoints=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_files(tmp_path_factory.mktemp("files"))


def gradual_member(files: Path, output: Path, **changes: Any) -> ziplm.Member:
    short = {"speedup": [2], "dense_steps": 0, "steps_per_target": 30, "evaluations": 0, "keep_best": False}
    options = shared_options(files, "embedding", output, **{**GRADUAL, **short, **changes})
    (member,) = ziplm.compress(**options)
    return member


def test_a_gradual_run_without_labels_lowers_the_cosine_distance(files: Path, tmp_path: Path) -> None:
    """The divergence of an embedder is its cosine distance; random letters are learned only by heart."""
    untrained = gradual_member(files, tmp_path / "untrained", learning_rate=1e-12).metrics["divergence"]
    tokens = gradual_member(files, tmp_path / "tokens", logit_weight=0.0).metrics["divergence"]
    cosine = gradual_member(files, tmp_path / "cosine", token_weight=0.0).metrics["divergence"]
    assert cosine < 0.8 * untrained
    assert cosine < 0.9 * tokens  # control: hidden states alone, from which embedders learned before


def test_the_loss_of_an_embedder_compares_pooled_embeddings() -> None:
    weights = {"task": 0.0, "outputs": 0.7, "token": 0.2}
    loss = distillation_loss(Embedding("cls"), **weights)
    assert (loss.cosine, loss.pooling, loss.logit, loss.token) == (0.7, "cls", 0.0, 0.2)
    loss = distillation_loss(Classification(), **weights)
    assert (loss.cosine, loss.logit, loss.token) == (0.0, 0.7, 0.2)


def test_a_single_embedder_is_fine_tuned_with_a_teacher(files: Path, tmp_path: Path) -> None:
    member = gradual_member(files, tmp_path / "run", learning_rate=1e-12)
    losses = {}
    for name, teacher in {"dense": files / "bert", "itself": member.folder}.items():
        summary = ziplm.finetune(
            member.folder,
            "embedding",
            output=tmp_path / name,
            train_file=files / "texts.csv",
            teacher=teacher,
            training=TRAINING,
            max_length=16,
        )
        losses[name] = summary.losses[0][1]
    assert losses["itself"] < 1e-3 < losses["dense"]
    tuned = ziplm.load(tmp_path / "dense")
    assert not torch.equal(
        tuned.get_input_embeddings().weight, ziplm.load(member.folder).get_input_embeddings().weight
    )


def test_an_embedder_without_a_teacher_cannot_be_trained(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ziplm.UsageError, match="has no loss of its own"):
        ziplm.finetune(
            files / "bert",
            "embedding",
            output=tmp_path / "tuned",
            train_file=files / "texts.csv",
            training=TRAINING,
            max_length=16,
        )

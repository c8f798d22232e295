"""`ziplm.finetune`: a checkpoint in, a fine-tuned checkpoint out."""

from pathlib import Path

import pytest
import torch
import ziplm
from token_distill import DistillationLoss
from ziplm.options.training import TrainingOptions
from ziplm_compressed import options_for

TRAINING = TrainingOptions(max_steps=4, batch_size=8, learning_rate=1e-2, dropout=False, checkpoints=1)


def test_training_changes_the_weights_and_saves_a_checkpoint(files: Path, tmp_path: Path) -> None:
    summary = ziplm.finetune(
        files / "bert",
        "classification",
        output=tmp_path / "tuned",
        train_file=files / "train.csv",
        training=TRAINING,
        max_length=16,
    )
    assert summary.steps == 4
    assert summary.examples == 32
    before, after = ziplm.load(files / "bert"), ziplm.load(tmp_path / "tuned")
    changed = [
        not torch.equal(one, other)
        for one, other in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert any(changed)
    metrics = ziplm.evaluate(
        tmp_path / "tuned", "classification", validation_file=files / "valid.csv", max_length=16
    )
    assert 0 <= metrics["validation"]["accuracy"] <= 1


def test_a_teacher_pulls_a_shrunk_model_towards_itself(files: Path, tmp_path: Path) -> None:
    options = options_for(files, "bert", tmp_path / "run", speedup=[2], evaluations=0, refit=False)
    (member,) = ziplm.compress(**options)
    losses = {}
    for name, teacher in {"dense": files / "bert", "itself": member.folder}.items():
        summary = ziplm.finetune(
            member.folder,
            "classification",
            output=tmp_path / name,
            train_file=files / "train.csv",
            teacher=teacher,
            loss=DistillationLoss(task=0.0, logit=1.0, token=0.0),
            training=TRAINING,
            max_length=16,
        )
        losses[name] = summary.losses[0][1]
    assert losses["itself"] < 1e-6 < losses["dense"]  # a model has nothing to learn from itself


def test_a_model_is_never_overwritten(files: Path) -> None:
    with pytest.raises(ziplm.BadRun, match="already holds a model"):
        ziplm.finetune(files / "bert", "classification", output=files / "bert", training=TRAINING)


def test_a_checkpoint_without_a_head_says_how_to_give_it_one(files: Path, tmp_path: Path) -> None:
    """Not "fine-tune the model first", which is what the caller is doing."""
    with pytest.raises(ziplm.UsageError) as caught:
        ziplm.finetune(files / "gpt2", "classification", output=tmp_path / "tuned", training=TRAINING)
    assert "needs a class that ends with ForSequenceClassification" in str(caught.value)
    assert "AutoModelForSequenceClassification.from_pretrained(…), with num_labels" in str(caught.value)
    assert "fine-tune the model" not in str(caught.value)

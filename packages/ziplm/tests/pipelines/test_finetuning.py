"""`ziplm.finetune`: a checkpoint in, a fine-tuned checkpoint out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from click.testing import CliRunner
from token_distill import DistillationLoss
from transformers import AutoModelForSequenceClassification
from ziplm.architectures.checkpoint import load_with_new_head
from ziplm.cli import main
from ziplm.options.training import TrainingOptions
from ziplm_compressed import options_for
from ziplm_models import sizes_of
from ziplm_pipeline import CLASSIFIER, lively_model
from ziplm_text import letter_tokenizer

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
    assert "give --new-head (in Python: new_head=True)" in str(caught.value)
    assert "fine-tune the model" not in str(caught.value)


def labelled(folder: Path, *labels: object) -> Path:
    """Write examples whose text tells their label."""
    rows = [
        (f"{'abc'[number % len(labels)] * 4} {number % 7}", labels[number % len(labels)])
        for number in range(48)
    ]
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return file


def tuned(model: Path, file: Path, task: str = "classification", **more: Any) -> Any:
    output = file.parent / "tuned"
    ziplm.finetune(
        model, task, output=output, train_file=file, max_length=16, **{"training": TRAINING, **more}
    )
    return ziplm.load(output)


def test_labels_that_the_head_does_not_have_name_the_option(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ziplm.UsageError, match="correct the label, or give --new-head") as caught:
        tuned(files / "bert", labelled(tmp_path, "great", "poor", "Odd"))
    assert "label2id" not in str(caught.value)
    assert not (tmp_path / "tuned").exists()


def test_a_new_head_has_the_labels_of_the_data_and_learns_them(files: Path, tmp_path: Path) -> None:
    file = labelled(tmp_path, "poor", "great", "Odd")
    training = replace(TRAINING, max_steps=60)
    model = tuned(files / "bert", file, new_head=True, training=training)
    assert model.config.id2label == {0: "great", 1: "Odd", 2: "poor"}
    assert model.config.label2id == {"great": 0, "Odd": 1, "poor": 2}
    metrics = ziplm.evaluate(tmp_path / "tuned", "classification", validation_file=file, max_length=16)
    assert metrics["validation"]["accuracy"] > 0.9


def test_the_body_is_kept_and_every_weight_of_the_head_is_new(files: Path) -> None:
    settings = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    dense = ziplm.load(files / "bert")
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(load_with_new_head(files / "bert", AutoModelForSequenceClassification, settings))
    for name, weight in dense.base_model.state_dict().items():
        assert torch.equal(weight, made[0].base_model.state_dict()[name])
    assert made[0].classifier.weight.shape == dense.classifier.weight.shape  # as many classes as before
    assert not torch.equal(made[0].classifier.weight, dense.classifier.weight)
    assert torch.equal(made[0].classifier.weight, made[1].classifier.weight)
    assert not torch.equal(made[0].classifier.weight, made[2].classifier.weight)


def test_a_shrunk_model_can_have_a_new_head(files: Path, tmp_path: Path) -> None:
    options = options_for(files, "bert", tmp_path / "run", speedup=[2], evaluations=0, refit=False)
    (member,) = ziplm.compress(**options)
    model = tuned(member.folder, labelled(tmp_path, "a", "b", "c"), new_head=True)
    assert model.config.num_labels == 3
    assert sizes_of(model) == member.sizes


def test_a_model_without_a_head_gets_one(tmp_path: Path) -> None:
    """As after downloading an embedder."""
    ziplm.save(lively_model(CLASSIFIER).base_model, tmp_path / "body", letter_tokenizer())
    model = tuned(tmp_path / "body", labelled(tmp_path, "a", "b"), new_head=True)
    assert type(model).__name__.endswith("ForSequenceClassification")


def test_a_task_without_labels_makes_no_new_head(files: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abc " * 400)
    with pytest.raises(ziplm.UsageError, match="task causal-lm cannot make a new head"):
        tuned(files / "gpt2", tmp_path / "text.txt", "causal-lm", new_head=True)


def test_tags_of_words_make_a_head_too(files: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b", "cc"], "tags": ["O", "B-X", "I-X"]}] * 24
    file = tmp_path / "tagged.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = tuned(files / "bert", file, "token-classification", new_head=True)
    assert type(model).__name__.endswith("ForTokenClassification")
    assert list(model.config.label2id) == ["B-X", "I-X", "O"]


def test_the_command_makes_a_new_head(files: Path, tmp_path: Path) -> None:
    command = ["finetune", files / "bert", "--task", "classification", "--train-file"]
    command += [labelled(tmp_path, "a", "b", "c"), "-o", tmp_path / "tuned", "--steps", 2, "--max-length", 16]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 2
    assert "give --new-head" in result.output
    result = CliRunner().invoke(main, [*(str(word) for word in command), "--new-head"])
    assert result.exit_code == 0, result.output
    assert "saved in" in result.output
    assert ziplm.load(tmp_path / "tuned").config.num_labels == 3

"""Gradual compression: each target starts from the one before, and is fine-tuned."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from ziplm.errors import UsageError
from ziplm.files import read_json
from ziplm_models import POSITIONS, tiny_model
from ziplm_pipeline import linear_table
from ziplm_text import letter_tokenizer, write_rows


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny classifier with its data and a latency table, as options of `compress`."""
    folder = tmp_path_factory.mktemp("gradual")
    ziplm.save(tiny_model("BertForSequenceClassification"), folder / "dense", letter_tokenizer())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(80):
        letters = torch.randint(26, (int(torch.randint(2, 9, (), generator=generator)),), generator=generator)
        rows.append({"text": " ".join(chr(97 + int(n)) for n in letters), "label": int(letters[0]) % 2})
    linear_table().save(folder / "latency.json")
    return {
        "model": str(folder / "dense"),
        "task": "classification",
        "train_file": write_rows(folder / "train.csv", rows),
        "validation_file": write_rows(folder / "validation.csv", rows[:20]),
        "latency_table": str(folder / "latency.json"),
        "sequence_length": POSITIONS,
        "calibration_samples": 40,
        "search_samples": 10,
        "evaluations": 3,
        "mode": "gradual",
        "speedup": [1.5, 2.5],
        "steps_per_target": 4,
        "train_batch_size": 8,
        "dropout": False,
    }


@pytest.fixture(scope="module")
def family(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[ziplm.Compressed]:
    return ziplm.compress(output=tmp_path_factory.mktemp("run") / "run", **options)


def test_each_target_starts_from_the_one_before(family: list[ziplm.Compressed]) -> None:
    first, second = (member.metrics["sizes"] for member in family)
    for kind in first:
        assert all(b <= a for a, b in zip(first[kind], second[kind], strict=True))


def test_speedups_refer_to_the_dense_model(family: list[ziplm.Compressed]) -> None:
    for member, target in zip(family, (1.5, 2.5), strict=True):
        assert member.metrics["predicted"]["speedup"] >= target - 1e-9
        assert member.metrics["dense_parameters"]["layers"] > member.metrics["parameters"]["layers"]


def test_every_target_is_trained(family: list[ziplm.Compressed]) -> None:
    assert [member.metrics["training"]["steps"] for member in family] == [4, 4]
    report = read_json(family[0].folder.parent / "family.json")
    assert (report["steps"], report["examples"]) == (8, 64)


def test_the_results_load(family: list[ziplm.Compressed]) -> None:
    for member in family:
        assert ziplm.inspect_checkpoint(member.folder).heads == member.metrics["sizes"]["attention"]


def test_a_repeated_run_is_the_same(
    options: dict[str, Any], family: list[ziplm.Compressed], tmp_path: Path
) -> None:
    again = ziplm.compress(output=tmp_path / "run", **options)
    for one, other in zip(family, again, strict=True):
        assert one.metrics["search"] == other.metrics["search"]
        assert one.metrics["metrics"] == other.metrics["metrics"]
        first, second = ziplm.load(one.folder).state_dict(), ziplm.load(other.folder).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_target_more_goes_on_from_the_last(options: dict[str, Any], family: list[ziplm.Compressed]) -> None:
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


def test_without_a_teacher(options: dict[str, Any], tmp_path: Path) -> None:
    weights = {"task_weight": 1.0, "logit_weight": 0.0, "token_weight": 0.0}
    made = ziplm.compress(output=tmp_path, **{**options, "speedup": [2], **weights})
    assert made[0].metrics["training"]["steps"] == 4


def test_a_share_of_the_metric_is_no_target(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="share of the metric"):
        ziplm.compress(output=tmp_path, **{**options, "speedup": [], "recover": [0.9]})


def test_presets_fill_in_what_is_not_said() -> None:
    config = ziplm.Config("m", "sst2", "o", preset="bert-base-glue", learning_rate=1e-3)
    assert (config.mode, config.learning_rate, config.train_batch_size) == ("gradual", 1e-3, 32)
    assert config.speedup == tuple(range(2, 16))
    assert json.dumps(config.speedup)

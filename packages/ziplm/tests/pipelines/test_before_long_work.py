"""What cannot work is said before calibration, pruning and search, and no run folder is spoilt by it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from click.testing import CliRunner, Result
from latency_profiler import LatencyTable
from ziplm.cli import main
from ziplm.options.options import Options
from ziplm.options.toml import merged
from ziplm.tasks import Source, make_task
from ziplm_models import tiny_model
from ziplm_pipeline import linear_table
from ziplm_text import letter_rows, letter_tokenizer, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    ziplm.save(tiny_model("BertForSequenceClassification"), folder / "classifier", letter_tokenizer())
    ziplm.save(tiny_model("BertForMaskedLM"), folder / "masked", letter_tokenizer())
    rows = letter_rows()
    write_rows(folder / "train.csv", rows)
    write_rows(folder / "texts.csv", [{"text": row["text"]} for row in rows])
    linear_table().save(folder / "latency.json")
    return folder


def compress(folder: Path, run: Path, *more: object, validation: bool = True, task: str = "") -> Result:
    task = task or "classification"
    model, data = ("classifier", "train") if task == "classification" else ("masked", "texts")
    evaluated = ("--validation-file", folder / f"{data}.csv") if validation else ()
    arguments = (
        *("compress", folder / model, "--task", task, "-o", run, "--train-file", folder / f"{data}.csv"),
        *("--latency-table", folder / "latency.json", "--sequence-length", 16, "--speedup", 1.5),
        *("--calibration-samples", 40, "--search-samples", 10, "--evaluations", 2, "--threads", 1),
        *evaluated,
        *more,
    )
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


GRADUAL = ("--mode", "gradual", "--steps-per-target", 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--prior", "exact"), "prior exact is not for task classification; it is for mean embeddings"),
        ((*GRADUAL, "--precision", "bf16"), "precision bf16 on a CPU is slow at best; use float32"),
        ((*GRADUAL, "--temperature", 0), "the loss cannot be made: "),
        ((*GRADUAL, "--report-to", "foo"), "report_to is unknown: foo is not supported"),
        (("--mode", "gradual", "--steps-per-target", 0), "steps_per_target is 0; use 1 or more, or -1"),
    ],
)
def test_options_that_do_not_fit(folder: Path, tmp_path: Path, more: tuple[Any, ...], message: str) -> None:
    result = compress(folder, tmp_path / "run", *more)
    assert message in result.stderr.splitlines()[-1]
    assert result.exit_code == 2
    assert not (tmp_path / "run/state/metric.safetensors").exists()


def test_nothing_to_evaluate_on(folder: Path, tmp_path: Path) -> None:
    result = compress(folder, tmp_path / "run", validation=False)
    assert "there is nothing to evaluate on; give --validation-file" in result.stderr
    assert compress(folder, tmp_path / "run").exit_code == 0  # and the folder can still be used


def test_embeddings_have_no_loss_of_their_own(folder: Path, tmp_path: Path) -> None:
    result = compress(folder, tmp_path / "run", "--loss", "task", task="embedding")
    assert "task embedding has no loss of its own; use --loss kl" in result.stderr


def test_a_model_with_another_head_becomes_embeddings_gradually(folder: Path, tmp_path: Path) -> None:
    """It has no pooler and no logits; nothing has to be said about that."""
    result = compress(folder, tmp_path / "run", *GRADUAL, task="embedding")
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "run/1.5x/metrics.json").read_text())
    assert metrics["seed"] == 0
    assert not list((tmp_path / "run").rglob("traces/*"))  # they are large, and of this step alone


def test_a_dry_run_sees_the_same(folder: Path, tmp_path: Path) -> None:
    result = compress(folder, tmp_path / "run", "--dry-run", validation=False)
    assert "there is nothing to evaluate on" in result.stderr
    assert compress(folder, tmp_path / "run").exit_code == 0
    result = compress(folder, tmp_path / "run", "--dry-run", "--seed", 5)
    assert "was made with other options: seed is 5, was 0" in result.stderr
    table = LatencyTable.load(folder / "latency.json")
    strange = {f"other {kind}": curve for kind, curve in table.curves.items()}
    dataclasses.replace(table, curves=strange).save(tmp_path / "strange.json")
    result = compress(folder, tmp_path / "new", "--dry-run", "--latency-table", tmp_path / "strange.json")
    assert "the latency table is of a model with 0 groups" in result.stderr


def test_a_speedup_is_over_the_model_that_was_given(folder: Path, tmp_path: Path) -> None:
    assert compress(folder, tmp_path / "run").exit_code == 0
    first = json.loads((tmp_path / "run/1.5x/metrics.json").read_text())
    (again,) = ziplm.compress(
        str(tmp_path / "run/1.5x"),
        "classification",
        output=tmp_path / "again",
        speedup=[1.5],
        train_file=str(folder / "train.csv"),
        validation_file=str(folder / "train.csv"),
        latency_table=str(folder / "latency.json"),
        sequence_length=16,
        calibration_samples=40,
        search_samples=10,
        evaluations=2,
    )
    assert again.metrics["predicted"]["seconds"] <= first["predicted"]["seconds"] / 1.5
    assert again.metrics["predicted"]["speedup"] >= 1.5


def test_another_method_is_not_undone_by_the_file_of_a_run(tmp_path: Path) -> None:
    Options("m", "sst2", "o").save(tmp_path / "config.toml")
    file = Options.load(tmp_path / "config.toml")
    values = {name: getattr(file, name) for name in ("model", "task", "output", "prior", "search", "refit")}
    again = Options.of(merged({**values, "method": "default"}, {"method": "ziplm"}))
    assert (again.prior, again.search, again.refit) == ("own", "ziplm", False)
    kept = Options.of(merged({**values, "method": "default", "refit": False}, {"seed": 3}))
    assert (kept.prior, kept.search, kept.refit, kept.seed) == ("auto", "direct", False, 3)
    presets = Options.of(
        merged({**values, "learning_rate": 1.0, "mode": "gradual"}, {"preset": "bert-base-glue"})
    )
    assert presets.learning_rate != 1.0


def test_f1_is_of_the_class_that_glue_means(tmp_path: Path) -> None:
    """Whatever number the model has for it."""
    task: Any = make_task("mrpc")
    rows = [{"sentence1": "a", "sentence2": "b", "label": int(n > 1)} for n in range(8)]
    file = write_rows(tmp_path / "dev.csv", rows)
    found = []
    for names in (["not_equivalent", "equivalent"], ["equivalent", "not_equivalent"]):
        model = tiny_model("BertForSequenceClassification")
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: number for number, name in enumerate(names)}
        head: Any = model.classifier
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(torch.tensor([float(name == "not_equivalent") for name in names]))
        splits = task.load_splits(model, letter_tokenizer(), Source(eval_file=file), 16)
        found.append(task.evaluate(model, splits.evaluation["eval"]))
    assert found == [{"f1": 0.0, "accuracy": 0.25}] * 2


def evaluate(folder: Path, *more: object) -> Result:
    arguments = ("evaluate", folder / "classifier", "--validation-file", folder / "train.csv", *more)
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("device", ["cuda", "foo"])
def test_evaluate_needs_a_device_that_is_there(folder: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        device = "cuda:99"
    result = evaluate(folder, "--task", "classification", "--device", device)
    assert result.exit_code in (1, 2)
    assert len(result.stderr.strip().splitlines()) == 1


def test_predictions_of_a_validation_file(folder: Path, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.tsv", [{"sentence": "a b"}, {"sentence": "c"}])
    more = ("--validation-file", test, "--predictions", tmp_path / "out")
    result = evaluate(folder, "--task", "sst2", "--sequence-length", 16, *more)
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "out/SST-2.tsv").read_text().splitlines()) == 3


def test_without_a_network_a_name_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("ziplm.network._answers", lambda: asked.append(1))
    with pytest.raises(ziplm.BadCheckpoint, match="there is no folder some/model, and the hub gave no model"):
        ziplm.load("some/model")
    assert asked

